"""Several steps per query, source views that the target chooses, and prediction views: in every method."""

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Augment, CroDoBo, Method, Query, Source, SourceOnly
from crodobo.core.prediction import Prediction
from crodobo.evaluate.protocols import offline
from crodobo.methods import REGISTRY

AUGMENT = Augment(margin=1)


def digits(count: int, seed: int, colour: Tensor | None = None) -> Tensor:
    """One of two bars on black, or in a colour."""
    generator = Generator().manual_seed(seed)
    images = torch.zeros(count, 3, 16, 16)
    images[::2, :, 4:12, 6:9] = 0.9
    images[1::2, :, 6:9, 4:12] = 0.9
    images = (images + 0.05 * torch.rand(count, 1, 16, 16, generator=generator)).clamp(0, 1)
    images[:, :, 0] = images[:, :, -1] = images[..., 0] = images[..., -1] = 0
    return images if colour is None else images * colour.view(3, 1, 1)


def make_source() -> Source:
    return Source(digits(40, 0), torch.arange(40) % 2)


def make(kind: type[Method] = CroDoBo, **settings: object) -> Method:
    options: dict[str, object] = {"warmup": 3, "warmup_batch": 8, "threads": 1, "seed": 3}
    return kind(make_source(), augment=AUGMENT, **options | settings)  # type: ignore[arg-type]


def step(method: Method, images: Tensor) -> Prediction:
    with Query(images.clone()) as query:
        return method.step(query)


def test_each_step_draws_its_own_bootstrap() -> None:
    once, thrice = make(SourceOnly, steps=1), make(SourceOnly, steps=3)
    first = step(once, digits(8, 1)).adaptation.bootstrap[0]
    drawn = [first, *(step(once, digits(8, 1)).adaptation.bootstrap[0] for _ in range(2))]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(step(thrice, digits(8, 1)).adaptation.bootstrap[0], drawn[2])
    for name, weight in thrice.learners[0].network.state_dict().items():
        assert torch.allclose(weight, once.learners[0].network.state_dict()[name], atol=1e-6), name


def test_a_step_burns_what_it_derived_before_the_next_one() -> None:
    class Keeping(SourceOnly):
        def adapt(self, query: Query, images: Tensor) -> object:  # type: ignore[override]
            seen.append(query.own(images.clone()))
            assert all(not earlier.any() for earlier in seen[:-1])
            return super().adapt(query, images)

    seen: list[Tensor] = []
    step(make(Keeping, steps=3), digits(8, 1))
    assert len(seen) == 3
    assert not seen[-1].any()


def test_a_budget_allows_as_many_steps_as_fit_and_at_least_one() -> None:
    count = {"steps": 0}

    class Counting(SourceOnly):
        def adapt(self, query: Query, images: Tensor) -> object:  # type: ignore[override]
            count["steps"] += 1
            return super().adapt(query, images)

    step(make(Counting, budget=1e-9), digits(8, 1))
    assert count["steps"] == 1
    step(make(Counting, budget=1.0), digits(8, 1))
    assert count["steps"] > 3


def test_a_query_that_is_predicted_only_takes_one_step_on_the_source() -> None:
    method = make(steps=3)
    assert step(method, digits(4, 1)).adaptation.predicted_only == "few samples"
    taken = [step(method, digits(4, seed)).adaptation.bootstrap for seed in range(2, 6)]
    assert [len(drawn) for drawn in taken].count(2) == 1  # 16 samples have come: one batch of the source per learner


def test_a_grey_target_is_met_as_if_the_source_were_always_plain() -> None:
    chosen, plain = make(source_views="auto"), make(source_views="plain")
    assert str(chosen.source_views.now) == "colours"
    for seed in (1, 2):
        images = digits(16, seed)
        assert torch.equal(step(chosen, images).probabilities, step(plain, images).probabilities)
    assert str(chosen.source_views.now) == "plain"
    assert chosen.state().keys() == plain.state().keys()


def test_a_coloured_target_is_met_by_learners_of_the_views() -> None:
    chosen, named = make(source_views="auto"), make(source_views="colours")
    images = digits(16, 1, torch.tensor([0.9, 0.2, 0.4]))
    for method in (chosen, named):  # the two have drawn different numbers in their warm-ups
        step(method, images)
    assert str(chosen.source_views.now) == str(named.source_views.now) == "colours"
    assert chosen.state().keys() == named.state().keys()


def test_undecided_learners_go_on_from_a_checkpoint() -> None:
    first, second = make(source_views="auto"), make(source_views="auto", warmup=0)
    step(first, digits(2, 1))
    assert not first.source_views.decided
    second.load_state({name: value.clone() for name, value in first.state().items()})
    for method in (first, second):
        method.predictions = [step(method, digits(16, seed)).probabilities for seed in (2, 3)]  # type: ignore[attr-defined]
    assert torch.equal(first.predictions[-1], second.predictions[-1])  # type: ignore[attr-defined]


def test_views_from_the_query_are_burned_with_it() -> None:
    method = make(source_views="background+style", steps=2, plain=True)
    taken: list[Tensor] = []
    with Query(digits(16, 1)) as query:
        own = query.own
        query.own = lambda derived: taken.append(held := own(derived)) or held  # type: ignore[method-assign, func-returns-value]
        method.step(query)
    shown = [tensor for tensor in taken if tensor.shape == (16, 3, 16, 16)]
    assert len(shown) >= 2 * (2 + 2)  # per step: weak, strong, and a source batch for each of two learners
    assert not any(tensor.any() for tensor in taken)


def test_images_that_are_their_own_view_are_still_there_when_they_are_predicted() -> None:
    method = make(plain=True, steps=2)
    method.augment = Augment(margin=0)  # the weak view is the image itself
    seen: list[Tensor] = []
    learner = method.learners[0]
    answer = learner.answer
    learner.answer = lambda images, norm=None: seen.append(images.clone()) or answer(images, norm)  # type: ignore[method-assign, func-returns-value]
    step(method, digits(16, 1))
    assert torch.allclose(seen[-1], digits(16, 1))


@pytest.mark.parametrize("name", ["tent", "cotta", "eata", "sar", "dann", "crodobo"])
def test_every_method_meets_a_grey_target_as_if_the_source_were_always_plain(name: str) -> None:
    methods = [make(REGISTRY[name], source_views=views, steps=1) for views in ("auto", "plain")]
    resumed = make(REGISTRY[name], source_views="auto", steps=1, warmup=0)
    resumed.load_state({key: value.clone() for key, value in methods[0].state().items()})
    for seed in (1, 2, 3):
        first, second, third = (step(method, digits(16, seed)).probabilities for method in (*methods, resumed))
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_only_samples_that_may_be_learned_decide_about_the_views() -> None:
    method = make(source_views="auto")
    images = torch.cat([digits(8, 1), digits(8, 2, torch.tensor([0.9, 0.2, 0.4]))])
    with Query(images) as query:
        method.step(query, rows=torch.arange(16) < 8)
    assert str(method.source_views.now) == "plain"


def test_a_step_that_fails_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    method = make(source_views="auto")
    before = {name: value.clone() for name, value in method.state().items()}

    def fail(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(method, "adapt", fail)
        with pytest.raises(MemoryError):
            step(method, digits(16, 1))
    assert not method.source_views.decided
    assert before.keys() == method.state().keys()
    assert all(torch.equal(value, before[name]) for name, value in method.state().items())
    step(method, digits(16, 1))
    assert str(method.source_views.now) == "plain"


def test_undecided_learners_can_be_healed() -> None:
    method = make(source_views="auto")
    with torch.no_grad():
        for learner in method.learners:
            learner.network.bottleneck[0].weight.fill_(float("nan"))
    assert step(method, digits(2, 1)).probabilities.isfinite().all()


def test_the_first_images_decide_offline_too() -> None:
    method = make(SourceOnly, source_views="auto")
    offline(method, digits(16, 1), torch.arange(16) % 2, size=8, epochs=1)
    assert str(method.source_views.now) == "plain"
    assert not method.learners[0].plain_start


def test_reseeded_learners_stay_so_when_the_target_decides() -> None:
    drawn = []
    for seed in (1, 2):
        method = make(SourceOnly, source_views="auto")
        method.learners[0].reseed(seed)
        drawn.append(step(method, digits(16, 1)).adaptation.bootstrap[0])
    assert not torch.equal(*drawn)


def test_answers_before_learning_do_not_depend_on_the_number_of_steps() -> None:
    once, often = (make(steps=steps, order="predict-then-adapt", source_views="plain", warmup=40) for steps in (1, 3))
    images = digits(64, 1)
    first, second = step(once, images), step(often, images)
    assert first.adaptation.predicted_only == second.adaptation.predicted_only
    assert torch.equal(first.probabilities, second.probabilities)


# --- several owners of one query ---


@pytest.mark.parametrize("name", ["crodobo", "bn-statistics", "tent", "source-only"])
@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.parametrize("mine", [1, 5])
def test_an_answer_does_not_depend_on_the_samples_of_others(name: str, learn: bool, mine: int) -> None:
    """The same images of mine, beside two kinds of images of others: every bit of my answer is the same."""

    def ask(others: Tensor) -> Tensor:
        method = make(REGISTRY[name], learners=1 if name != "crodobo" else 2)
        step(method, digits(16, 5))  # as the first query, so that learners and statistics have moved
        owners = torch.tensor([0] * mine + [1] * len(others))
        with Query(torch.cat([digits(mine, 1), others])) as query:
            found = method.step(query, owners=owners) if learn else method.predict(query, owners)
        return found.probabilities[:mine]

    usual, noise = digits(11, 2), torch.rand(11, 3, 16, 16, generator=Generator().manual_seed(3))
    assert torch.equal(ask(usual), ask(noise))


def test_one_owner_is_answered_after_learning_as_without_owners() -> None:
    first, second = make(), make()
    with Query(digits(8, 1)) as query:
        answer = first.step(query, owners=torch.full((8,), 3))
    assert torch.equal(answer.probabilities, step(second, digits(8, 1)).probabilities)


def test_several_owners_change_answers_but_not_what_is_learned() -> None:
    first, second = make(), make()
    with Query(digits(8, 1)) as query:
        first.step(query, owners=torch.tensor([0, 1] * 4))
    step(second, digits(8, 1))
    for name, weight in first.learners[0].network.state_dict().items():
        assert torch.equal(weight, second.learners[0].network.state_dict()[name]), name


def test_what_is_copied_for_an_owner_is_burned() -> None:
    method, given = make(), digits(8, 1)
    with Query(given) as query:
        method.predict(query, torch.tensor([0, 1] * 4))
        wiped_inside = query.wiped
    assert wiped_inside >= given.numel() * 4  # the float copies for the two owners
    assert not given.any()
