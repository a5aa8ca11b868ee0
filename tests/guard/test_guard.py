"""The guard does not learn bursts, restores collapsed learners, and otherwise changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import CroDoBo, Method, Prediction, Query, Source, SourceOnly
from crodobo.config import LearnerSettings
from crodobo.core.prediction import Adaptation
from crodobo.engine import Sequence
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

SIZE = 64
WARM = LearnerSettings(warmup=40, warmup_batch=32)
Make = Callable[..., Method]


def mixed(seed: int, size: int = SIZE, only: int | None = None) -> tuple[Tensor, Tensor]:
    """Noisier images than the source's, in random order, of all four classes or of one; and their labels."""
    generator = Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=generator) if only is None else torch.full((size,), only)
    images = torch.rand(size, 1, 16, 16, generator=generator) * 0.45
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[:, top : top + 8, left : left + 8] += 0.5
    return images, labels


def ask(method: Method, images: Tensor) -> Prediction:
    with Query(images.clone()) as query:
        return method.step(query)


def accuracy(prediction: Prediction, labels: Tensor) -> float:
    return float((prediction.labels == labels).float().mean())


class Still(SourceOnly):
    """Predicts but does not learn, so that only the test changes its weights."""

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        return Adaptation()


@pytest.fixture(scope="module")
def warm(source: Source) -> list[dict[str, Tensor]]:
    """Two learners that have learned the source."""
    torch.set_num_threads(1)
    learners = make_learners(source, 2, seed=0, settings=WARM)
    warm_up(learners, Sequence(threads=1), source, Augment())
    return [learner.state() for learner in learners]


@pytest.fixture
def make(source: Source, warm: list[dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch) -> Make:
    """A method whose guard knows the usual mix after four queries and copies good weights every second query."""
    monkeypatch.setattr("crodobo.guard.guard.TRUST", 4 * SIZE)
    monkeypatch.setattr("crodobo.guard.guard.EVERY", 2 * SIZE)

    def build(kind: type[Method] = CroDoBo, *, learners: int = 2, **settings: Any) -> Method:
        ready = make_learners(source, learners, seed=0, settings=WARM)
        for learner, state in zip(ready, warm, strict=False):
            learner.load_state(state)
        return kind(source, learners=ready, threads=1, **{"plain": True} | settings)

    return build


@pytest.fixture
def healthy(make: Make) -> Method:
    """Two learners after eight mixed queries."""
    method = make(Still)
    for seed in range(8):
        ask(method, mixed(seed)[0])
    return method


def weights(method: Method) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in method.state().items() if name.startswith("learners.")}


@torch.no_grad()
def take_all_for_one_class(method: Method) -> None:
    for learner in method.learners:
        learner.network.classifier.bias[2] += 1000


def test_on_a_mixed_stream_the_guard_changes_nothing(make: Make) -> None:
    guarded, other = make(), make(guard=False)
    for seed, samples in enumerate([SIZE] * 4 + [1] * 24 + [12] * 6 + [SIZE] * 3):
        images, _ = mixed(seed, samples)
        answer = ask(guarded, images)
        assert torch.equal(answer.probabilities, ask(other, images).probabilities)
        assert not answer.adaptation.predicted_only
        assert not answer.adaptation.restored
    for name, value in other.state().items():
        assert torch.equal(value, guarded.state()[name]), name


@pytest.mark.parametrize("order", ["adapt-then-predict", "predict-then-adapt"])
def test_a_burst_of_one_class_is_predicted_and_not_learned(make: Make, order: str) -> None:
    method = make(order=order)
    for seed in range(8):
        ask(method, mixed(seed)[0])
    before = weights(method)
    for seed in range(8, 11):
        images, labels = mixed(seed, only=1)
        answer = ask(method, images)
        assert answer.adaptation.predicted_only
        assert not answer.adaptation.restored
        assert accuracy(answer, labels) > 0.9, "its own statistics would make it look mixed"
    after = weights(method)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not ask(method, mixed(16)[0]).adaptation.predicted_only, "and then it goes on"
    assert not torch.equal(
        weights(method)["learners.0.network.classifier.bias"], before["learners.0.network.classifier.bias"]
    )


@pytest.mark.parametrize("size", [4, 1])
def test_a_burst_in_small_queries_is_soon_noticed(make: Make, size: int) -> None:
    method = make(Still, learners=1)
    for seed in range(256 // size):
        assert not ask(method, mixed(seed, size)[0]).adaptation.predicted_only
    unlearned = [ask(method, mixed(seed, size, only=1)[0]).adaptation.predicted_only for seed in range(128 // size)]
    assert all(unlearned[96 // size :])


def test_a_stream_that_always_has_few_classes_is_learned(make: Make) -> None:
    method = make(Still, learners=1)
    unlearned = 0
    for seed in range(10):
        images, labels = mixed(seed, 4 * SIZE)
        unlearned += ask(method, images[labels < 2][:SIZE]).adaptation.predicted_only is not None
    assert not unlearned


def test_collapsed_learners_get_their_last_good_weights_back(healthy: Method) -> None:
    images, labels = mixed(9)
    before = accuracy(healthy.predict(images), labels)
    take_all_for_one_class(healthy)
    answer = ask(healthy, images)
    assert answer.adaptation.restored is not None
    assert "they saw 1.0 classes in the query, their last good weights" in answer.adaptation.restored
    assert answer.adaptation.restored.endswith("the weights from 2 queries ago were restored")
    assert accuracy(answer, labels) >= before - 0.05
    assert not ask(healthy, mixed(10)[0]).adaptation.restored


def test_a_query_that_destroys_the_learners_still_gets_a_good_prediction(make: Make) -> None:
    class Destroyer(SourceOnly):
        def adapt(self, query: Query, images: Tensor) -> Adaptation:
            if self.steps == 8:
                take_all_for_one_class(self)
            return Adaptation()

    method = make(Destroyer)
    answers = [ask(method, mixed(seed)[0]) for seed in range(10)]
    assert [bool(answer.adaptation.restored) for answer in answers] == [False] * 8 + [True, False]
    assert accuracy(answers[8], mixed(8)[1]) > 0.9


def test_weights_that_are_not_finite_are_replaced(healthy: Method) -> None:
    with torch.no_grad():
        healthy.learners[1].network.bottleneck[0].weight[0, 0] = float("nan")
    answer = ask(healthy, mixed(9)[0])
    assert "no longer finite" in str(answer.adaptation.restored)
    assert answer.probabilities.isfinite().all()
    assert answer.adaptation.skipped == 0


def test_learners_that_no_longer_know_the_source_have_collapsed(healthy: Method) -> None:
    with torch.no_grad():
        for learner in healthy.learners:
            for weight in learner.network.classifier.parameters():
                weight.copy_(weight.roll(1, 0))
    answers = [ask(healthy, mixed(seed)[0]) for seed in (9, 10)]
    reasons = [answer.adaptation.restored for answer in answers]
    assert any("no longer knew the source" in str(reason) for reason in reasons)
    assert accuracy(ask(healthy, mixed(11)[0]), mixed(11)[1]) > 0.9


def test_learners_that_no_longer_agree_have_collapsed(healthy: Method) -> None:
    with torch.no_grad():
        for weight in healthy.learners[0].network.classifier.parameters():
            weight.copy_(weight.roll(1, 0))
    reasons = [ask(healthy, mixed(seed)[0]).adaptation.restored for seed in range(9, 14)]
    assert any("they agreed on" in str(reason) for reason in reasons)
