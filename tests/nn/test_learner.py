"""A learner steps completely or not at all, is reproducible, and continues from a stored state."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import LearnerSettings
from crodobo.core.source import Source
from crodobo.engine import Sequence
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average, make_learners, warm_up
from crodobo.views.augment import Augment

SETTINGS = LearnerSettings.of(warmup=0, warmup_batch=16)


def make(source: Source, seed: int = 0, settings: LearnerSettings = SETTINGS) -> Learner:
    return make_learners(source, 1, seed, settings)[0]


def source_loss(learner: Learner, source: Source, size: int = 16) -> Tensor:
    batch = source.bootstrap(size, learner.generator)
    return F.cross_entropy(learner.forward(batch.images), batch.labels)


def practised(source: Source, seed: int = 0) -> Learner:
    """A learner that has moments and BatchNorm statistics."""
    learner = make(source, seed)
    for _ in range(2):
        assert learner.update(source_loss(learner, source))
    return learner


def stored(learner: Learner) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in learner.state().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def without_gradients(learner: Learner) -> bool:
    return all(weight.grad is None for weight in learner.network.parameters())


BAD_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "nan-loss": lambda loss: loss * float("nan"),
    "infinite-loss": lambda loss: loss / 0,
    "nan-gradient": lambda loss: loss + (loss * 0).sqrt(),
    "infinite-gradient": lambda loss: loss * 0 + (loss - loss.detach() + 1e-44).sqrt(),
}
each_bad_loss = pytest.mark.parametrize("spoil", BAD_LOSSES.values(), ids=BAD_LOSSES)


def test_an_update_moves_weights_moments_and_statistics(source: Source) -> None:
    learner = practised(source)
    before = stored(learner)
    assert learner.update(source_loss(learner, source))
    after = stored(learner)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    for part in ("backbone.stem.0.weight", "backbone.stem.1.running_mean", "bottleneck.0.weight", "bottleneck.1.bias"):
        assert f"network.{part}" in moved
    assert "optimiser.network.backbone.stem.0.weight.exp_avg" in moved
    assert without_gradients(learner)


@each_bad_loss
def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(
    source: Source, spoil: Callable[[Tensor], Tensor]
) -> None:
    learner = practised(source)
    batch = source.bootstrap(16, learner.generator)
    before = stored(learner)
    loss = F.cross_entropy(learner.forward(batch.images), batch.labels)
    assert not same(stored(learner), before)  # the forward has moved BatchNorm's statistics
    assert learner.update(spoil(loss)) is False
    assert same(stored(learner), before)
    assert without_gradients(learner)


@each_bad_loss
def test_a_learner_continues_after_a_skipped_update(source: Source, spoil: Callable[[Tensor], Tensor]) -> None:
    disturbed, undisturbed = practised(source), practised(source)
    images = source.images[:8]
    disturbed.update(spoil(disturbed.forward(images).logsumexp(dim=1).sum()))
    for learner in (disturbed, undisturbed):
        assert learner.update(source_loss(learner, source))
    assert same(stored(disturbed), stored(undisturbed))


def test_the_first_update_can_be_skipped(source: Source) -> None:
    learner = make(source)
    before = stored(learner)
    assert not learner.update(learner.forward(source.images[:4]).sum() * float("nan"))
    assert same(stored(learner), before)


def test_forget_undoes_forwards(source: Source) -> None:
    learner = practised(source)
    before = stored(learner)
    learner.forward(source.images[:8]).sum().backward()
    learner.forward(source.images[8:16])
    assert not same(stored(learner), before)
    learner.forget()
    assert same(stored(learner), before)
    assert without_gradients(learner)


STORES: dict[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "clones": lambda state: {name: value.clone() for name, value in state.items()},
    "contiguous": lambda state: {
        name: value.clone(memory_format=torch.contiguous_format) for name, value in state.items()
    },
    "safetensors": lambda state: load(save({name: value.contiguous() for name, value in state.items()})),
}


@pytest.mark.parametrize("store", STORES.values(), ids=STORES)
def test_a_stored_learner_continues_with_the_same_bits(
    source: Source, store: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> None:
    original = practised(source)
    state = store(original.state())
    restored = practised(source, seed=5)
    assert not same(stored(restored), stored(original))
    restored.load_state(state)
    assert same(stored(restored), stored(original))
    for _ in range(3):
        for learner in (original, restored):
            assert learner.update(source_loss(learner, source))
    assert same(stored(restored), stored(original))


def test_a_learner_can_be_stored_before_its_first_update(source: Source) -> None:
    original, restored = make(source), practised(source, seed=5)
    restored.load_state(stored(original))
    for learner in (original, restored):
        learner.update(source_loss(learner, source))
    assert same(stored(restored), stored(original))


def test_forget_returns_to_the_loaded_state(source: Source) -> None:
    state = stored(practised(source))
    learner = make(source, seed=5)
    learner.load_state(state)
    assert not learner.update(learner.forward(source.images[:8]).sum() * float("nan"))
    assert same(stored(learner), state)


def test_learning_does_not_change_the_loaded_state(source: Source) -> None:
    state = stored(practised(source))
    copy = {name: value.clone() for name, value in state.items()}
    learner = make(source)
    learner.load_state(state)
    learner.update(source_loss(learner, source))
    assert same(state, copy)


def test_the_same_seed_makes_the_same_learner(source: Source) -> None:
    assert same(stored(practised(source)), stored(practised(source)))


def test_another_seed_makes_another_learner(source: Source) -> None:
    one, other = stored(make(source, seed=0)), stored(make(source, seed=1))
    assert not torch.equal(one["network.bottleneck.0.weight"], other["network.bottleneck.0.weight"])
    assert not torch.equal(one["generator"], other["generator"])


def test_each_number_gives_a_different_reproducible_learner(source: Source) -> None:
    three = [stored(learner) for learner in make_learners(source, 3, 0, SETTINGS)]
    assert not same(three[0], three[1])
    assert not same(three[1], three[2])
    (third,) = make_learners(source, 1, 0, SETTINGS, first=2)
    assert same(stored(third), three[2])


def test_learners_leave_the_global_generator_alone(source: Source) -> None:
    before = torch.get_rng_state()
    learner = practised(source)
    learner.predict(source.images[:4])
    assert torch.equal(torch.get_rng_state(), before)


def test_warming_up_lowers_the_source_loss(source: Source) -> None:
    settings = LearnerSettings.of(warmup=25, warmup_batch=16, lr=3e-3)
    learner, steps = make(source, settings=settings), []
    before = F.nll_loss(learner.predict(source.images).log(), source.labels)
    warm_up([learner], Sequence(1), source, Augment(margin=1), after_step=lambda: steps.append(1))
    after = F.nll_loss(learner.predict(source.images).log(), source.labels)
    assert after < before / 2
    assert len(steps) == 25


def test_no_warm_up_moves_nothing(source: Source) -> None:
    learner = make(source)
    before = stored(learner)
    warm_up([learner], Sequence(1), source, Augment())
    assert same(stored(learner), before)


@pytest.mark.parametrize("norm", ["mixed", "running", "query"])
@pytest.mark.parametrize("size", [1, 2, 40])
def test_predictions_are_distributions_and_change_nothing(source: Source, norm: str, size: int) -> None:
    learner = make(source, settings=LearnerSettings.of(norm=norm))
    learner.update(source_loss(learner, source))
    before = stored(learner)
    probabilities = learner.predict(source.images[:size])
    assert probabilities.shape == (size, 4)
    assert torch.allclose(probabilities.sum(dim=1), torch.ones(size), atol=1e-5)
    assert probabilities.min() >= 0
    assert not probabilities.requires_grad
    assert same(stored(learner), before)


def test_the_norm_decides_whether_a_prediction_depends_on_its_neighbours(source: Source) -> None:
    for norm, depends in (("running", False), ("mixed", True), ("query", True)):
        learner = make(source, settings=LearnerSettings.of(norm=norm))
        learner.update(source_loss(learner, source))
        first, second = learner.predict(source.images[:8])[0], learner.predict(source.images[[0, *range(20, 27)]])[0]
        assert torch.allclose(first, second, atol=1e-6) is not depends


def test_a_batch_of_one_can_be_learned_from(source: Source) -> None:
    learner = practised(source)
    before = stored(learner)
    assert learner.update(F.cross_entropy(learner.forward(source.images[:1]), source.labels[:1]))
    assert not same(stored(learner), before)


def test_a_backbone_at_learning_rate_zero_stays(source: Source) -> None:
    learner = make(source, settings=LearnerSettings.of(backbone_lr_scale=0))
    before = [weight.clone() for weight in learner.network.backbone.parameters()]
    classifier = learner.predict(source.images)
    learner.update(source_loss(learner, source))
    assert all(map(torch.equal, before, learner.network.backbone.parameters()))
    assert not torch.equal(learner.predict(source.images), classifier)


def test_a_pretrained_backbone_learns_ten_times_slower_and_as_published_a_hundred_times(
    source: Source, tmp_path: Path
) -> None:
    path = tmp_path / "w.pth"
    torch.save(make(source).network.backbone.state_dict(), path)

    def moved(settings: LearnerSettings) -> float:
        learner = make(source, settings=settings)
        before = [weight.detach().clone() for weight in learner.network.backbone.parameters()]
        learner.update(source_loss(learner, source))
        after = learner.network.backbone.parameters()
        return max(float((new.detach() - old).abs().max()) for new, old in zip(after, before, strict=True))

    # Adam's first step is as long as the learning rate.
    assert moved(LearnerSettings.of(lr=1e-2)) == pytest.approx(1e-2, rel=0.05)
    assert moved(LearnerSettings.of(lr=1e-2, weights=path)) == pytest.approx(1e-3, rel=0.05)
    assert moved(LearnerSettings.of(lr=1e-2, weights=path, plain=True)) == pytest.approx(1e-4, rel=0.05)
    assert moved(LearnerSettings.of(lr=1e-2, weights=path, backbone_lr_scale=0.5)) == pytest.approx(5e-3, rel=0.05)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_first_layers_can_be_frozen(source: Source, share: float) -> None:
    learner = make(source, settings=LearnerSettings.of(frozen=share))
    before = [weight.detach().clone() for weight in learner.network.parameters()]
    learner.update(source_loss(learner, source))
    moved = [not torch.equal(*pair) for pair in zip(before, learner.network.parameters(), strict=True)]
    backbone = list(learner.network.backbone.parameters())
    frozen = moved[: len(backbone)].index(True) if any(moved[: len(backbone)]) else len(backbone)
    assert sum(weight.numel() for weight in backbone[:frozen]) <= share * sum(weight.numel() for weight in backbone)
    assert all(moved[frozen:])
    assert frozen == {0.0: 0, 1.0: len(backbone)}.get(share, frozen)
    assert not any(weight.requires_grad for weight in backbone[:frozen])
    learner.learn_only(learner.network.parameters(), lr=0.1)
    assert not any(weight.requires_grad for weight in backbone[:frozen])


def test_the_average_is_the_mean_of_the_probabilities(source: Source) -> None:
    learners = make_learners(source, 3, 0, SETTINGS)
    joint = average(learners, Sequence(threads=1), source.images)
    each = [learner.predict(source.images) for learner in learners]
    assert torch.allclose(joint.probabilities, sum(each) / 3)
    unanimous = [len({int(row) for row in rows}) == 1 for rows in zip(*(p.argmax(dim=1) for p in each), strict=True)]
    assert joint.agreement == pytest.approx(sum(unanimous) / 40)


def test_one_learner_has_no_agreement(source: Source) -> None:
    assert average([make(source)], Sequence(threads=1), source.images).agreement is None
