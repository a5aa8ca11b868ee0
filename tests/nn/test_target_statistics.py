"""The target's BatchNorm statistics: corrected for the classes of a query, and kept apart from the source's."""

from collections.abc import Callable

import pytest
import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from crodobo.config import LearnerSettings
from crodobo.core.source import Source
from crodobo.nn.layer_statistics import LayerStatistics, Moments, moments, normalise, renormalise
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners
from crodobo.nn.target_statistics import QueryNorm, TargetStatistics

CHANNELS, CLASSES = 5, 3
PARTS = torch.tensor([0.5, 0.3, 0.2])  # the class mix of the source


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def labels_of(samples: int) -> Tensor:
    """As many of each class as its part of the source."""
    return torch.repeat_interleave(torch.arange(CLASSES), (PARTS * samples).long())


def inputs_of(labels: Tensor, seed: int, flat: bool) -> Tensor:
    """Inputs of a layer: each class has its own mean in each channel, and its own spread."""
    means, spreads = randn(CLASSES, CHANNELS, seed=1), 0.7 + 0.3 * torch.arange(CLASSES)
    noise = randn(len(labels), CHANNELS, 3, 3, seed=seed)
    inputs = means[labels][:, :, None, None] + spreads[labels][:, None, None, None] * noise
    return inputs[:, :, 0, 0].clone() if flat else inputs


def shifted(inputs: Tensor) -> Tensor:
    """The same in another domain: each channel has another scale and another mean."""
    shape = (1, CHANNELS) + (1,) * (inputs.dim() - 2)
    return inputs * torch.linspace(0.5, 2, CHANNELS).view(shape) + torch.linspace(-3, 3, CHANNELS).view(shape)


def statistics(flat: bool = False) -> LayerStatistics:
    """A layer that has met the labelled source."""
    layer = nn.BatchNorm1d(CHANNELS) if flat else nn.BatchNorm2d(CHANNELS)
    known, labels = LayerStatistics(layer, CLASSES, momentum=0.05), labels_of(8000)
    known.add_source(inputs_of(labels, 2, flat), F.one_hot(labels, CLASSES).float())
    return known


# Corrected for the classes of a query


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("mix", [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.6, 0.4]])
def test_a_narrow_query_gets_the_statistics_of_a_mixed_one_of_its_domain(mix: list[float], flat: bool) -> None:
    counts = (torch.tensor(mix) * 8000).round().long()
    narrow = moments(shifted(inputs_of(torch.repeat_interleave(torch.arange(CLASSES), counts), 3, flat)))
    whole = moments(shifted(inputs_of(labels_of(8000), 4, flat)))
    found = statistics(flat).corrected(narrow, torch.tensor(mix), PARTS)
    deviation = whole.var.sqrt()
    assert ((narrow.mean - whole.mean).abs() / deviation).max() > 0.3, "the classes matter"
    assert ((found.mean - whole.mean).abs() / deviation).max() < 0.08
    torch.testing.assert_close(found.var, whole.var, rtol=0.12, atol=0)


def test_a_query_with_the_sources_classes_is_not_corrected() -> None:
    found = moments(shifted(inputs_of(labels_of(50), 3, flat=False)))
    corrected = statistics().corrected(found, PARTS, PARTS)
    torch.testing.assert_close(corrected.mean, found.mean)
    torch.testing.assert_close(corrected.var, found.var)


def test_a_correction_is_bounded() -> None:
    """A class without any variance, or a query of equal samples, must not make statistics explode."""
    known = statistics()
    known.class_square[0] = known.class_mean[0].square()
    only = torch.tensor([1.0, 0.0, 0.0])
    for var in (0.0, 1.0):
        found = known.corrected(Moments(torch.zeros(CHANNELS), torch.full((CHANNELS,), var)), only, PARTS)
        assert found.var.max() <= 9 * var + 1e-6
        assert found.mean.abs().max() <= 3 * (known.source(PARTS).mean - known.class_mean[0]).abs().max() + 1e-6


@pytest.mark.parametrize("only", range(CLASSES))
def test_of_a_query_of_unknown_classes_only_what_no_class_explains_is_left(only: int) -> None:
    """Two of five channels tell the classes apart. The shift of the domain in the others stays, theirs does not."""
    known = statistics()
    means = torch.zeros(CLASSES, CHANNELS)
    means[:, :2] = torch.tensor([[3.0, 0.0], [0.0, 3.0], [-3.0, -3.0]])
    known.class_mean.copy_(means - PARTS @ means)
    known.class_square.copy_(1 + known.class_mean.square())
    usual = known.source(PARTS)
    assert known.layer.running_mean is not None
    assert known.layer.running_var is not None
    known.layer.running_mean.copy_(usual.mean)
    known.layer.running_var.copy_(usual.var)
    domain = torch.tensor([0.0, 0.0, 2.0, -1.0, 0.5])
    left = known.without_classes(Moments(known.class_mean[only] + domain, torch.ones(CHANNELS)), PARTS)
    torch.testing.assert_close(left.mean, usual.mean + domain, atol=0.01, rtol=0)
    torch.testing.assert_close(left.var, usual.var, atol=0, rtol=0.01)


def test_the_first_samples_of_a_class_count_alike() -> None:
    """The moments are the mean of all samples until there are as many as the momentum stands for."""
    layer, inputs = nn.BatchNorm2d(CHANNELS), inputs_of(labels_of(20), 2, flat=False)
    known, one_hot = LayerStatistics(layer, CLASSES, momentum=0.01), F.one_hot(labels_of(20), CLASSES).float()
    for part in torch.arange(20).split(4):
        known.add_source(inputs[part], one_hot[part])
    wanted = torch.stack([inputs[one_hot[:, number] == 1].mean(dim=(0, 2, 3)) for number in range(CLASSES)])
    torch.testing.assert_close(known.class_mean, wanted)


def test_the_moments_of_a_mix_of_classes_are_those_of_such_samples() -> None:
    known, mix = statistics(), torch.tensor([0.1, 0.2, 0.7])
    wanted = moments(inputs_of(torch.repeat_interleave(torch.arange(CLASSES), (mix * 8000).round().long()), 5, False))
    torch.testing.assert_close(known.source(mix).mean, wanted.mean, atol=0.05, rtol=0)
    torch.testing.assert_close(known.source(mix).var, wanted.var, rtol=0.1, atol=0)


def test_a_burst_is_as_far_as_the_farthest_class() -> None:
    known = statistics()
    usual, each = known.source(PARTS), [moments(inputs_of(torch.full((4000,), c), 6, False)) for c in range(CLASSES)]
    wanted = max(float(((one.mean - usual.mean).square() / usual.var).mean()) for one in each)
    assert known.burst(PARTS) == pytest.approx(wanted, rel=0.1)


def test_a_class_that_was_not_measured_counts_as_the_whole_source(source: Source) -> None:
    """With many classes a sample of the source can miss some."""
    learner = make_learners(source, 1, 0, LearnerSettings.of())[0]
    few = source.labels < 3
    target = learner.keep_target_statistics(torch.full((4,), 0.25), [(source.images[few], source.labels[few])])
    for each in target.layers:
        missing = each.source(torch.tensor([0.0, 0.0, 0.0, 1.0]))
        torch.testing.assert_close(missing.mean, each.layer.running_mean)
        torch.testing.assert_close(missing.var, each.layer.running_var)


def test_the_targets_statistics_go_along_when_the_weights_change_the_source() -> None:
    known, labels = statistics(), labels_of(8000)
    known.mean.copy_(known.source(PARTS).mean + 2)
    known.var.copy_(known.source(PARTS).var * 1.5)
    for _ in range(3):  # after a change of weights, all inputs are twice as large
        before = known.source(PARTS)
        known.add_source(2 * inputs_of(labels, 2, flat=False), F.one_hot(labels, CLASSES).float())
        known.go_along(before, known.source(PARTS))
    source = known.source(PARTS)
    torch.testing.assert_close(known.mean, source.mean + 2, atol=0.05, rtol=0.01)
    torch.testing.assert_close(known.var, source.var * 1.5, rtol=0.05, atol=0)


# Normalised with other statistics than the batch's


def reference(inputs: Tensor, layer: nn.Module, wanted: Moments) -> Tensor:
    """Batch renormalisation, written out: y = ((x − μ)/σ · r + d)·γ + β, with r and d without gradient."""
    axes = [axis for axis in range(inputs.dim()) if axis != 1]
    shape = [1, -1] + [1] * (inputs.dim() - 2)
    mean = inputs.mean(axes, keepdim=True)
    deviation = ((inputs - mean).square().mean(axes, keepdim=True) + layer.eps).sqrt()
    other = (wanted.var.view(shape) + layer.eps).sqrt()
    r, d = deviation.detach() / other, (mean.detach() - wanted.mean.view(shape)) / other
    normal = (inputs - mean) / deviation * r + d
    return normal * layer.weight.view(shape) + layer.bias.view(shape)


@pytest.mark.parametrize("flat", [False, True])
def test_renormalising_has_given_statistics_and_the_gradients_of_batch_normalisation(flat: bool) -> None:
    layer = (nn.BatchNorm1d(CHANNELS) if flat else nn.BatchNorm2d(CHANNELS)).double()
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, CHANNELS))
        layer.bias.copy_(torch.linspace(-1, 1, CHANNELS))
    wanted = Moments(torch.linspace(-2, 2, CHANNELS).double(), torch.linspace(0.3, 3, CHANNELS).double())
    values = inputs_of(labels_of(20), 7, flat).double()
    direction = randn(*values.shape, seed=8).double()

    def differentiate(make: Callable[[Tensor], Tensor]) -> list[Tensor]:
        inputs = values.clone().requires_grad_()
        outputs = make(inputs)
        return [outputs.detach(), *torch.autograd.grad((outputs * direction).sum(), [inputs, layer.weight, layer.bias])]

    ours = differentiate(lambda inputs: renormalise(layer, inputs, moments(inputs.detach()), wanted))
    theirs = differentiate(lambda inputs: reference(inputs, layer, wanted))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)
    torch.testing.assert_close(ours[0], normalise(layer, values, wanted).detach())
    # Other samples count: a sum over the batch of equal gradients has none, unlike in `normalise`.
    axes = [axis for axis in range(values.dim()) if axis != 1]
    torch.testing.assert_close(ours[1].sum(axes), torch.zeros(CHANNELS).double(), atol=1e-9, rtol=0)


def test_a_layer_without_weights_is_renormalised_too() -> None:
    layer, values = nn.BatchNorm2d(CHANNELS, affine=False), inputs_of(labels_of(20), 7, flat=False)
    wanted = Moments(torch.ones(CHANNELS), torch.full((CHANNELS,), 2.0))
    torch.testing.assert_close(renormalise(layer, values, moments(values), wanted), normalise(layer, values, wanted))


# Kept apart from the source's


def make(source: Source, seed: int = 0) -> Learner:
    """A learner that keeps statistics of the target."""
    learner = make_learners(source, 1, seed, LearnerSettings.of())[0]
    prior = torch.bincount(source.labels) / len(source)
    learner.keep_target_statistics(prior, [(source.images[:20], source.labels[:20]), (source.images, source.labels)])
    return learner


def statistics_of(learner: Learner, part: str) -> dict[str, Tensor]:
    state = {name: value.clone() for name, value in learner.state().items() if name.startswith(part)}
    return {name: value for name, value in state.items() if part == "target." or "running" in name}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    assert one
    return all(torch.equal(value, other[name]) for name, value in one.items())


def running(learner: Learner) -> dict[str, Tensor]:
    """The running statistics of the target."""
    return {
        name: value for name, value in statistics_of(learner, "target.").items() if name.endswith((".mean", ".var"))
    }


NORMS = {
    "mixed": QueryNorm(),
    "narrow": QueryNorm(torch.tensor([0.7, 0.1, 0.1, 0.1]), own=0.1, learned_own=0.5, momentum=0.05),
    "short": QueryNorm(None, own=0.1, learned_own=0.3, momentum=0.01),
}


def test_measuring_the_source_leaves_the_learner_as_it_was(source: Source) -> None:
    plain = make_learners(source, 1, 0, LearnerSettings.of())[0]
    learner = make(source)
    assert same(statistics_of(plain, "network."), statistics_of(learner, "network."))
    assert learner.target
    for each in learner.target.layers:
        assert torch.equal(each.mean, each.layer.running_mean)
        assert torch.equal(each.var, each.layer.running_var)
        assert each.known.min() > 0


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_query_moves_the_targets_statistics_alone(source: Source, norm: QueryNorm, size: int) -> None:
    learner = make(source)
    learner.query_norm = norm
    network, before = statistics_of(learner, "network."), running(learner)
    learner.forward_query(source.images[:size] * 0.5).sum().backward()
    assert same(statistics_of(learner, "network."), network)
    moved = running(learner)
    assert not any(torch.equal(value, moved[name]) for name, value in before.items() if size > 1 or "mean" in name)


def test_a_source_batch_moves_the_sources_statistics(source: Source) -> None:
    learner = make(source)
    network, target = statistics_of(learner, "network."), running(learner)
    learner.forward(source.images)
    assert not same(statistics_of(learner, "network."), network)
    assert same(running(learner), target)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_predicting_moves_nothing_and_leaves_no_hook(source: Source, norm: QueryNorm) -> None:
    learner = make(source)
    learner.query_norm = norm
    before = {name: value.clone() for name, value in learner.state().items()}
    usual = learner.predict(source.images[:16], "running")
    learner.predict(source.images[:16])
    learner.predict(source.images[:1])
    assert same({name: value.clone() for name, value in learner.state().items()}, before)
    assert torch.equal(learner.predict(source.images[:16], "running"), usual)


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_layers_are_put_back_when_a_forward_fails(source: Source, norm: QueryNorm) -> None:
    learner = make(source)
    learner.query_norm = norm
    usual, network = learner.predict(source.images[:16], "running"), statistics_of(learner, "network.")
    for forward in (learner.forward_query, learner.predict):
        with pytest.raises(RuntimeError):
            forward(torch.rand(4, 3, 16, 16))  # three channels instead of one
    assert same(statistics_of(learner, "network."), network)
    assert torch.equal(learner.predict(source.images[:16], "running"), usual)


def test_a_query_that_is_far_away_may_leave_no_trace(source: Source) -> None:
    learner = make(source)
    learner.query_norm, before = QueryNorm(None, 0.5, 0.5, momentum=0.0), running(learner)
    with torch.no_grad():
        learner.forward_query(source.images[:16] * 0.1)
    assert same(running(learner), before)


def test_an_update_that_is_not_finite_takes_the_statistics_back(source: Source) -> None:
    learner = make(source)
    assert learner.target
    before = {name: value.clone() for name, value in learner.state().items()}
    with learner.target.source(source.labels):
        learner.accumulate(F.cross_entropy(learner.forward(source.images), source.labels))
    assert not learner.update(learner.forward_query(source.images[:16] * 0.5).sum() * float("nan"))
    assert same({name: value.clone() for name, value in learner.state().items()}, before)


def test_a_frozen_copy_stays_where_it_was(source: Source) -> None:
    learner = make(source)
    learner.update(learner.forward_query(source.images[:16] * 0.5).square().mean())
    frozen = learner.frozen_copy()
    kept = {name: value.clone() for name, value in frozen.state().items() if name != "generator"}
    assert same(kept, {name: value for name, value in learner.state().items() if name in kept})
    learner.update(learner.forward_query(source.images[:16] * 0.5).square().mean())
    learner.forget()
    assert same({name: value for name, value in frozen.state().items() if name != "generator"}, kept)
    assert not any(weight.requires_grad for weight in frozen.network.parameters())


def test_a_learner_goes_on_from_its_state_to_the_bit(source: Source) -> None:
    def learn(learner: Learner, seed: int) -> None:
        assert learner.target
        learner.query_norm = list(NORMS.values())[seed % 3]
        with learner.target.source(source.labels):
            learner.accumulate(F.cross_entropy(learner.forward(source.images), source.labels))
        views = torch.rand(16, 1, 16, 16, generator=Generator().manual_seed(seed))
        assert learner.update(learner.forward_query(views).square().mean())

    one, other = make(source), make(source, seed=1)
    for seed in range(3):
        learn(one, seed)
    other.load_state({name: value.clone() for name, value in one.state().items()})
    for seed in range(3, 6):
        learn(one, seed)
        learn(other, seed)
    assert same(one.state(), other.state())


def test_the_common_case_is_batch_normalisation(source: Source) -> None:
    """A mixed query is learned exactly as without statistics of its own."""
    plain, learner = make_learners(source, 1, 0, LearnerSettings.of())[0], make(source)
    assert torch.equal(learner.forward_query(source.images), plain.forward(source.images))
    assert learner.target
    each, layer = learner.target.layers[0], plain.network.backbone
    first = next(module for module in layer.modules() if isinstance(module, nn.BatchNorm2d))
    assert torch.equal(each.mean, first.running_mean)


def test_a_network_without_batchnorm_has_no_statistics() -> None:
    target = TargetStatistics([], PARTS, momentum=0.05)
    with target.source(torch.tensor([0, 1])), target.learning(NORMS["narrow"], 2), target.predicting(QueryNorm(), 2):
        target.begin()
    assert target.tensors() == {}
