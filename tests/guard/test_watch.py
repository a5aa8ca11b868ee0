"""The watch: what is learned from short, narrow, strange and mixed queries, and the way back after harm."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import CroDoBo, Prediction, Query, Source
from crodobo.config import LearnerSettings
from crodobo.engine import Sequence
from crodobo.guard.class_prior import fit_classes
from crodobo.guard.watch import Watch
from crodobo.methods.objective import PRESETS
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

SIZE = 64
WARM = LearnerSettings(warmup=40, warmup_batch=32)
NEAR = {"lit": 0.5, "noise": 0.45}  # easy to recognise for learners that know the source
DIM = {"lit": 0.15, "noise": 0.8}  # harder: about nine of ten are recognised at first
Make = Callable[..., CroDoBo]


def draw(seed: int, size: int = SIZE, only: int | None = None, *, lit: float, noise: float) -> tuple[Tensor, Tensor]:
    """Images of another domain than the source's, in random order, of all four classes or of one; and their labels."""
    generator = Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=generator) if only is None else torch.full((size,), only)
    images = torch.rand(size, 1, 16, 16, generator=generator) * noise
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[:, top : top + 8, left : left + 8] += lit
    return images, labels


def gratings(seed: int, size: int = SIZE) -> Tensor:
    """Waves in random directions, without any of the classes."""
    x, waves = torch.linspace(0, 1, 16), 20 * torch.rand(size, 2, 1, 1, generator=Generator().manual_seed(seed))
    return 0.5 + 0.5 * torch.sin(waves[:, :1] * x + waves[:, 1:] * x[:, None])


def ask(method: CroDoBo, images: Tensor, **options: Any) -> Prediction:
    with Query(images.clone()) as query:
        return method.step(query, **options)


def accuracy(prediction: Prediction, labels: Tensor) -> float:
    return float((prediction.labels == labels).float().mean())


def weights(method: CroDoBo) -> Tensor:
    parameters = [weight for learner in method.learners for weight in learner.network.parameters()]
    return torch.cat([weight.detach().flatten() for weight in parameters]).clone()


def copied(method: CroDoBo) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.state().items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.equal(value, other[name])]


@pytest.fixture(scope="module")
def warm(source: Source) -> list[dict[str, Tensor]]:
    """Two learners that have learned the source."""
    torch.set_num_threads(1)
    learners = make_learners(source, 2, seed=0, settings=WARM)
    warm_up(learners, Sequence(threads=1), source, Augment())
    return [{name: value.clone() for name, value in learner.state().items()} for learner in learners]


@pytest.fixture
def make(source: Source, warm: list[dict[str, Tensor]]) -> Make:
    """CroDoBo with learners that know the source."""

    def build(learners: int = 2, **settings: Any) -> CroDoBo:
        ready = make_learners(source, learners, seed=0, settings=WARM)
        for learner, state in zip(ready, warm, strict=False):
            learner.load_state(state)
        return CroDoBo(source, learners=ready, threads=1, **settings)

    return build


# Short queries


@pytest.mark.parametrize("size", [1, 2, 7])
def test_nothing_is_learned_from_a_short_query_but_the_source_goes_on(make: Make, size: int) -> None:
    method = make()
    before, queries, learned = weights(method), 0, 0
    while not learned:
        prediction = ask(method, draw(queries, size, **NEAR)[0])
        queries += 1
        assert prediction.adaptation.predicted_only == "few samples"
        learned = sum(map(len, prediction.adaptation.bootstrap))
        assert torch.equal(weights(method), before) is (learned == 0)
    assert (queries - 1) * size < 16 <= queries * size, "sixteen of the source at a time, not one for each query"
    assert learned <= 2 * queries * size


def test_single_images_do_no_harm_as_the_published_algorithm_does(make: Make) -> None:
    method, plain = make(), make(plain=True)
    images, labels = draw(999, 256, **DIM)
    before = accuracy(method.predict(images), labels)
    for seed in range(21):
        image, _ = draw(seed, 1, **DIM)
        assert ask(method, image).adaptation.predicted_only == "few samples"
        ask(plain, image)
    assert accuracy(method.predict(images), labels) >= before - 0.03
    assert accuracy(plain.predict(images), labels) < before - 0.2, "the test can tell harm"


def moved(method: CroDoBo, images: Tensor, **options: Any) -> float:
    """How far a query moves the weights, if it is Adam's first step: that is as long as the learning rate."""
    for learner in method.learners:
        learner.optimiser.state.clear()
    before = weights(method)
    assert not ask(method, images, **options).adaptation.predicted_only
    return float((weights(method) - before).abs().mean())


def test_a_short_query_takes_a_short_step(make: Make) -> None:
    def balanced(size: int) -> Tensor:
        images = torch.cat([draw(label, size // 4, only=label, **NEAR)[0] for label in range(4)])
        return images[torch.randperm(size, generator=Generator().manual_seed(0))]

    full, *short = (moved(make(), balanced(size)) for size in (SIZE, 8, 32))
    assert [each / full for each in short] == pytest.approx([8 / SIZE, 32 / SIZE], rel=0.2)


def test_the_step_is_scaled_by_the_samples_that_may_be_learned(make: Make) -> None:
    images, _ = draw(0, **NEAR)
    full, short = (moved(make(), images, rows=torch.arange(SIZE) < learned) for learned in (SIZE, 8))
    assert short / full == pytest.approx(8 / SIZE, rel=0.2)


# Bursts


def test_a_burst_of_one_class_is_recognised_and_not_learned(make: Make) -> None:
    method = make()
    for seed in range(4):
        assert not ask(method, draw(seed, **NEAR)[0]).adaptation.predicted_only
    for seed in range(4, 8):
        images, labels = draw(seed, only=1, **NEAR)
        prediction = ask(method, images)
        assert prediction.adaptation.predicted_only == "few classes"
        assert accuracy(prediction, labels) > 0.9
    assert not ask(method, draw(8, **NEAR)[0]).adaptation.predicted_only, "and then it goes on"


def test_a_stream_that_begins_with_a_burst_is_protected_from_the_first_query_on(make: Make) -> None:
    method = make()
    images, labels = draw(999, 256, **NEAR)
    before = accuracy(method.predict(images), labels)
    for seed in range(6):
        burst, classes = draw(seed, only=seed // 3, **NEAR)
        prediction = ask(method, burst)
        assert prediction.adaptation.predicted_only
        assert accuracy(prediction, classes) > 0.9
    assert accuracy(method.predict(images), labels) >= before - 0.03


def test_few_classes_are_learned_in_part(make: Make) -> None:
    """The step is shorter, and the usual predictions keep ℓ_div from pushing samples into the other classes."""
    method = make()
    images, labels = draw(0, 4 * SIZE, **NEAR)
    two = labels < 2
    prediction = ask(method, images[two][:SIZE])
    assert isinstance(method.guard, Watch)
    lesson = method.guard.lesson
    assert prediction.adaptation.predicted_only is None
    assert 0.1 < lesson.weight < 0.8
    assert lesson.usual is not None
    assert method.learners[0].step_size == pytest.approx(lesson.weight)
    assert accuracy(prediction, labels[two][:SIZE]) > 0.9


def novice(source: Source, **settings: Any) -> CroDoBo:
    """CroDoBo with learners that hardly know the source, and so cannot see a burst in their predictions."""
    return CroDoBo(source, learners=2, threads=1, warmup=2, warmup_batch=32, parallel=False, **settings)


def test_bursts_that_the_learners_cannot_see_are_found_by_their_features_and_undone(source: Source) -> None:
    method = novice(source, backbone_lr_scale=0.01)
    before = weights(method)
    answers = [ask(method, draw(seed, only=seed // 6 % 4, **NEAR)[0]) for seed in range(14)]
    reasons, told = zip(*((each.adaptation.predicted_only, each.adaptation.restored) for each in answers), strict=True)
    assert reasons[:6] == ("may be a burst",) * 3 + (None,) * 3, "after a while it could be a mixed stream"
    found = next(number for number, each in enumerate(told) if each)
    assert found in (6, 7, 8)
    assert "bursts that the learners had missed; the weights from before the stream" in str(told[found])
    assert set(reasons[found:]) == {"may be a burst"}
    assert sum(map(bool, told)) == 1, "nothing was learned since"
    assert float((weights(method) - before).norm()) < float(before.norm()) / 10, "only the source was learned since"


def test_a_mixed_stream_is_learned_by_learners_that_know_little(source: Source) -> None:
    """A backbone that hardly moves is not harmed by wrong labels. One that learns at the full rate could be."""
    slow, fast = novice(source, backbone_lr_scale=0.01), novice(source, backbone_lr_scale=1.0)
    queries = [draw(seed, **NEAR)[0] for seed in range(8)]
    reasons = [ask(slow, images).adaptation.predicted_only for images in queries]
    assert reasons == ["may be a burst"] * 3 + [None] * 5, "it is learned once it has looked mixed for a while"
    assert [ask(fast, images).adaptation.predicted_only for images in queries][-1] == "learners disagree"


def test_the_probation_begins_again_with_a_new_domain_and_undoes_nothing(source: Source) -> None:
    method = novice(source, backbone_lr_scale=0.01)
    for seed in range(6):
        ask(method, draw(seed, **NEAR)[0])
    assert isinstance(method.guard, Watch)
    method.guard.domain.samples.fill_(1)  # as if it had just changed
    answer = ask(method, draw(6, 16, **NEAR)[0]).adaptation
    assert (answer.predicted_only, answer.restored) == ("may be a burst", None)


def test_the_reference_shares_the_answers_of_unsure_learners_only_while_bursts_may_be_missed(source: Source) -> None:
    images, _ = draw(0, **NEAR)

    def distance(evidence: float) -> float:
        """How far the answer is from that of the learners alone."""
        method = novice(source)
        assert isinstance(method.guard, Watch)
        method.guard.domain.samples.fill_(1000)
        method.guard.bursts.blindness.fill_(1.0)
        method.guard.bursts.spread.evidence[0] = evidence
        answer = method.predict(images).probabilities
        alone = torch.stack([learner.predict(images) for learner in method.learners]).mean(dim=0)
        theirs = torch.stack([learner.predict(images, "running") for learner in method.guard.reference.learners])
        return float((answer - alone).norm() / (theirs.mean(dim=0) - alone).norm())

    assert distance(0.0) == pytest.approx(0, abs=1e-4)
    assert distance(1.5) == pytest.approx(0.25, abs=0.01)
    assert distance(3.0) == pytest.approx(0.5, abs=0.01)


def answer_with_weak(method: CroDoBo, images: Tensor, used: bool, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The answer to a query, with or without the prediction of its weak view; and that prediction."""
    taken: list[Tensor] = []
    assert isinstance(method.guard, Watch)
    note = method.guard.note_weak

    def take(predictions: list[Tensor]) -> None:
        taken.append(torch.stack(predictions).mean(dim=0))
        if used:
            note(predictions)

    method.guard.note_weak = take  # type: ignore[method-assign]
    answer = ask(method, images, **options).probabilities
    assert method.guard._weak is None, "nothing is kept of a query that is answered"
    return answer, taken


def test_the_answer_to_a_mixed_query_is_the_mean_over_the_image_and_its_weak_view(make: Make) -> None:
    images, _ = draw(0, **NEAR)
    with_it, weak = answer_with_weak(make(parallel=False, steps=2), images, used=True)
    without, _ = answer_with_weak(make(parallel=False, steps=2), images, used=False)
    assert len(weak) == 2
    torch.testing.assert_close(with_it, (without + weak[-1]) / 2)


@pytest.mark.parametrize("kind", ["some rows", "few classes"])
def test_the_weak_view_counts_only_if_the_whole_query_is_learned_as_mixed(make: Make, kind: str) -> None:
    images, labels = draw(0, 4 * SIZE, **NEAR)
    images = images[labels < 2][:SIZE] if kind == "few classes" else images[:SIZE]
    rows = torch.arange(SIZE) < SIZE // 2 if kind == "some rows" else None
    with_it, taken = answer_with_weak(make(parallel=False), images, used=True, rows=rows)
    without, _ = answer_with_weak(make(parallel=False), images, used=False, rows=rows)
    assert taken, "it was learned"
    torch.testing.assert_close(with_it, without)


def test_a_query_of_very_few_classes_gets_one_step(make: Make) -> None:
    images, labels = draw(0, 8 * SIZE, **NEAR)
    rare = SIZE // 5
    mostly_one = torch.cat([images[labels == 0][: SIZE - rare], images[labels == 1][:rare]])

    def steps(chosen: Tensor) -> int:
        return len(answer_with_weak(make(parallel=False, steps=4), chosen[:SIZE], used=True)[1])

    assert steps(images) == 4
    assert steps(mostly_one) == 1


def test_no_more_steps_are_taken_once_learners_are_worse_than_the_reference(make: Make) -> None:
    method = make(parallel=False, steps=4)
    images, _ = draw(0, **NEAR)
    guard, taken = method.guard, []
    assert isinstance(guard, Watch)
    note = guard.note_weak

    def collapsed(predictions: list[Tensor]) -> None:
        taken.append(len(predictions))
        note([torch.eye(predictions[0].shape[1])[[0] * len(images)]] * len(predictions))

    guard.note_weak = collapsed  # type: ignore[method-assign]
    ask(method, images)
    assert len(taken) == 1


# Noise and harm


def test_noise_after_an_honest_start_does_no_lasting_harm(make: Make) -> None:
    method = make()
    images, labels = draw(999, 256, **NEAR)
    for seed in range(3):
        ask(method, draw(seed, **NEAR)[0])
    before = accuracy(method.predict(images), labels)
    reasons = [ask(method, gratings(seed)).adaptation.predicted_only for seed in range(6)]
    assert reasons[0] == "unlike earlier queries"
    assert accuracy(method.predict(images), labels) >= 0.8 * before
    honest = [ask(method, draw(seed, **NEAR)[0]).adaptation.predicted_only for seed in range(20, 26)]
    assert honest[-1] is None, "honest queries are learned again"
    assert accuracy(method.predict(images), labels) >= 0.95 * before


def test_noise_at_the_start_does_no_lasting_harm(make: Make) -> None:
    method = make()
    images, labels = draw(999, 256, **NEAR)
    before = accuracy(method.predict(images), labels)
    assert ask(method, gratings(0)).adaptation.predicted_only
    for seed in range(1, 6):
        ask(method, gratings(seed))
    for seed in range(6):
        ask(method, draw(seed, **NEAR)[0])
    assert accuracy(method.predict(images), labels) >= before - 0.03


@torch.no_grad()
def overwrite(method: CroDoBo) -> None:
    generator = Generator().manual_seed(0)
    for learner in method.learners:
        for weight in learner.network.parameters():
            weight.copy_(0.1 * torch.randn(weight.shape, generator=generator))


@torch.no_grad()
def take_all_for_one_class(method: CroDoBo) -> None:
    for learner in method.learners:
        learner.network.classifier.bias[2] += 1000


@pytest.mark.parametrize(("harm", "learned"), [(overwrite, 2), (take_all_for_one_class, 3)])
def test_harmed_learners_are_restored_within_a_few_mixed_queries(
    make: Make, harm: Callable[[CroDoBo], None], learned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crodobo.guard.way_back.EVERY", 3)
    method = make()
    for seed in range(learned):
        ask(method, draw(seed, **NEAR)[0])
    harm(method)
    images, labels = draw(999, 256, **NEAR)
    predictions = [ask(method, draw(seed, **NEAR)[0]) for seed in range(20, 25)]
    told = [prediction.adaptation.restored for prediction in predictions if prediction.adaptation.restored]
    assert len(told) == 1
    since = "before the stream" if learned < 3 else r"\d learned quer"
    assert told[0].startswith("the learners had been harmed (they")
    assert re.search(since, told[0])
    assert accuracy(method.predict(images), labels) > 0.9
    assert predictions[-1].adaptation.predicted_only is None


def test_a_copy_of_harmed_weights_is_left_behind_also_by_short_queries(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen samples cannot show that a copy is harmed too, so the next one is older."""
    monkeypatch.setattr("crodobo.guard.way_back.EVERY", 3)
    method = make(parallel=False)
    for seed in range(6):
        ask(method, draw(seed, 16, **NEAR)[0])
    take_all_for_one_class(method)
    assert isinstance(method.guard, Watch)
    method.guard.way_back.copy_if_due()
    told = [ask(method, draw(seed, 16, **NEAR)[0]).adaptation.restored for seed in range(20, 44)]
    assert 1 <= sum(map(bool, told)) <= 3, "not again and again"
    images, labels = draw(999, 256, **NEAR)
    assert accuracy(method.predict(images), labels) > 0.9


def test_undoing_after_a_restart_loses_nothing_older_than_the_checkpoint(make: Make) -> None:
    method, again = make(parallel=False), make(parallel=False)
    for seed in range(4):
        ask(method, draw(seed, **NEAR)[0])
    again.load_state(copied(method))
    stored = weights(again)
    for seed in range(4, 7):
        ask(again, draw(seed, **NEAR)[0])
    assert isinstance(again.guard, Watch)
    assert again.guard.way_back.to_old_weights() == "from 3 learned queries ago"
    assert torch.equal(weights(again), stored)


def test_harmed_learners_do_not_answer(make: Make) -> None:
    """The reference predicts for them, before anything was restored."""
    method = make()
    ask(method, draw(0, **NEAR)[0])
    take_all_for_one_class(method)
    images, labels = draw(1, **NEAR)
    assert accuracy(method.predict(images), labels) > 0.9


def test_weights_that_are_not_finite_are_replaced_in_any_domain(make: Make) -> None:
    for images in (draw(9, **NEAR)[0], draw(9, only=1, **NEAR)[0], draw(9, 1, **NEAR)[0], gratings(0)):
        method = make()
        with torch.no_grad():
            method.learners[1].network.bottleneck[0].weight[0, 0] = float("nan")
        prediction = ask(method, images)
        assert "no longer finite" in str(prediction.adaptation.restored)
        assert prediction.probabilities.isfinite().all()
        assert all(value.isfinite().all() for value in method.state().values() if value.is_floating_point())


# The published algorithm, state, and engines


def test_plain_is_the_algorithm_without_any_guard(make: Make) -> None:
    plain, bare = make(plain=True), make(guard=False, steps=1)
    for seed, size in enumerate((SIZE, SIZE, 3, SIZE)):
        images, _ = draw(seed, size, **DIM)
        assert torch.equal(ask(plain, images).probabilities, ask(bare, images).probabilities)
    assert plain.state().keys() - bare.state().keys() == {name for name in plain.state() if name.startswith("guard.")}
    assert not any(".target." in name for name in plain.state())


# Queries of every kind: mixed, short, single, narrow, of one class, strange, mixed again.
KINDS = [
    draw(0, **NEAR)[0],
    draw(1, 16, **NEAR)[0],
    draw(2, 1, **NEAR)[0],
    torch.cat([draw(3, 32, only=1, **NEAR)[0], draw(3, 32, only=2, **NEAR)[0]]),
    draw(4, only=3, **NEAR)[0],
    gratings(5),
    draw(6, **NEAR)[0],
]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_a_stream_goes_on_from_its_state_to_the_bit(make: Make, after: int) -> None:
    one, other = make(parallel=False), make(parallel=False, seed=3)
    for images in KINDS[:after]:
        ask(one, images)
    other.load_state(copied(one))
    assert not differing(one.state(), other.state())
    for images in KINDS[after : after + 2]:
        answers = [ask(method, images) for method in (one, other)]
        assert torch.equal(answers[0].probabilities, answers[1].probabilities)
        assert answers[0].adaptation.predicted_only == answers[1].adaptation.predicted_only
    assert not differing(one.state(), other.state())


@pytest.mark.parametrize(("kind", "moment"), [(6, "learning"), (3, "learning"), (3, "predicting"), (5, "predicting")])
def test_a_step_that_fails_leaves_no_trace(make: Make, kind: int, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(parallel=False)
    ask(method, KINDS[0])
    before, copies = copied(method), method.guard.snapshot()

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        if moment == "learning":
            patched.setattr(method, "adapt", lambda *given: (CroDoBo.adapt(method, *given), fail()))
        else:
            patched.setattr("crodobo.methods.stepping.average", fail)
        with pytest.raises(MemoryError):
            ask(method, KINDS[kind])
    assert not differing(before, method.state())
    assert isinstance(method.guard, Watch)
    assert method.guard.snapshot() == copies
    assert method.guard._view is None, "what was seen of the query is gone"
    assert method.guard._weak is None


def test_predicting_changes_nothing(make: Make) -> None:
    method = make(parallel=False)
    ask(method, KINDS[0])
    before = copied(method)
    for images in KINDS:
        method.predict(images)
    assert not differing(before, method.state())


def test_threads_and_sequence_give_the_same_bits(make: Make) -> None:
    at_once, in_turn = make(parallel=True), make(parallel=False)
    for images in KINDS:
        assert torch.equal(ask(at_once, images).probabilities, ask(in_turn, images).probabilities)
    assert not differing(at_once.state(), in_turn.state())


@pytest.mark.parametrize("order", ["adapt-then-predict", "predict-then-adapt"])
def test_queries_of_every_kind_are_answered_in_either_order(make: Make, order: str) -> None:
    method = make(order=order, parallel=False)
    answers = [ask(method, images) for images in KINDS]
    assert all(answer.probabilities.isfinite().all() for answer in answers)
    assert [answer.adaptation.predicted_only for answer in answers[:3]] == [None, None, "few samples"]
    assert answers[4].adaptation.predicted_only == "few classes"


# Queries that may be learned in part


@pytest.mark.parametrize("learned", [1, 4])
def test_of_a_query_with_few_samples_that_may_be_learned_nothing_is_learned(make: Make, learned: int) -> None:
    """The statistics follow as slowly as a query of so few samples would let them."""
    method = make(parallel=False)
    ask(method, draw(0, **NEAR)[0])
    before = [each.var.clone() for learner in method.learners for each in learner.target.layers]  # type: ignore[union-attr]
    rows = torch.arange(SIZE) < learned
    reasons = {ask(method, draw(seed, **NEAR)[0], rows=rows).adaptation.predicted_only for seed in range(1, 13)}
    after = [each.var for learner in method.learners for each in learner.target.layers]  # type: ignore[union-attr]
    assert reasons == {"few samples"}
    assert all(float((new / old).median()) > 0.5 for new, old in zip(after, before, strict=True))


def test_a_query_that_may_not_be_learned_at_all_is_predicted(make: Make) -> None:
    method = make(parallel=False)
    ask(method, draw(0, **NEAR)[0])
    before = copied(method)
    images, labels = draw(1, **NEAR)
    prediction = ask(method, images, rows=torch.zeros(SIZE, dtype=torch.bool))
    assert prediction.adaptation.predicted_only == "not asked to adapt"
    assert accuracy(prediction, labels) > 0.9
    assert not differing(before, method.state())


# Other networks and sources


def test_a_single_learner_is_protected_too(make: Make) -> None:
    method = make(learners=1)
    reasons = [ask(method, images).adaptation.predicted_only for images in KINDS]
    assert reasons[:3] == [None, None, "few samples"]
    assert reasons[4] == "few classes"
    take_all_for_one_class(method)
    assert any(ask(method, draw(seed, **NEAR)[0]).adaptation.restored for seed in range(10, 14))


def test_a_network_without_batchnorm_is_protected_too(source: Source) -> None:
    options = {"warmup": 30, "warmup_batch": 32, "lr": 3e-3}
    method = CroDoBo(source, learners=2, threads=1, backbone="small-groupnorm", **options)
    assert not any("running" in name for name in method.state())
    for seed in range(3):
        images, labels = draw(seed, **NEAR)
        assert accuracy(ask(method, images), labels) > 0.8
    assert ask(method, KINDS[2]).adaptation.predicted_only == "few samples"
    assert ask(method, KINDS[4]).adaptation.predicted_only == "few classes"
    assert ask(method, KINDS[5]).probabilities.isfinite().all()


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [0, 1, 2, 3], [0, 0, 0, 1]])
def test_a_source_of_four_samples_is_enough(labels: list[int]) -> None:
    images = torch.rand(4, 1, 16, 16, generator=Generator().manual_seed(0))
    method = CroDoBo(Source(images, labels), learners=2, threads=1, warmup=2, warmup_batch=4)
    for query in KINDS:
        prediction = ask(method, query)
        assert prediction.probabilities.shape == (len(query), max(labels) + 1)
        assert prediction.probabilities.isfinite().all()
        assert prediction.adaptation.skipped == 0
    assert all(value.isfinite().all() for value in method.state().values() if value.is_floating_point())


@pytest.mark.parametrize("preset", PRESETS)
def test_every_objective_is_learned_and_goes_on(make: Make, preset: str) -> None:
    method = make(objective=preset, parallel=False)
    before = weights(method)
    for images in (KINDS[3], KINDS[2], KINDS[1]):
        prediction = ask(method, images)
        assert prediction.adaptation.skipped == 0
        assert prediction.probabilities.isfinite().all()
    assert prediction.adaptation.predicted_only is None
    assert not torch.equal(weights(method), before), preset


def test_the_answer_to_a_query_of_few_classes_is_fitted_to_them(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that answer, and whether it is learned or not."""
    fitted: list[int] = []

    def note(probabilities: Tensor, usual: Tensor) -> Tensor:
        fitted.append(len(probabilities))
        return fit_classes(probabilities, usual)

    monkeypatch.setattr("crodobo.guard.watch.fit_classes", note)
    method = make(parallel=False)
    mixed, labels = draw(0, **NEAR)
    ask(method, mixed)
    method.predict(mixed)
    assert fitted == []
    burst = mixed[labels == labels[0]].repeat(8, 1, 1, 1)[:32]
    ask(method, burst.clone())
    method.predict(burst)
    assert fitted == [32, 32]
