"""LayerStatistics: the target's running statistics of one BatchNorm layer, and what classes do to them."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

SLOW = 0.0125  # momentum of a query of 8; shorter ones have too little variance of their own
MOST = 3.0  # largest factor of a correction to a standard deviation


class Moments(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    var: Tensor


class LayerStatistics:
    """One layer: the target's running statistics, and the moments of each class in the source."""

    def __init__(self, layer: _BatchNorm, classes: int, momentum: float) -> None:
        source = running(layer)
        self.layer, self.momentum = layer, momentum
        self.mean, self.var = source.mean.clone(), source.var.clone()
        self.class_mean = source.mean.new_zeros(classes, layer.num_features)
        self.class_square = self.class_mean.clone()
        self.known = source.mean.new_zeros(classes)  # samples of each class so far

    @torch.no_grad()
    def add_source(self, inputs: Tensor, one_hot: Tensor) -> None:
        """Move the moments of the classes towards those of a labelled batch."""
        each, square = sample_moments(inputs)
        count = one_hot.sum(dim=0)
        divisor = count.clamp(min=1)[:, None]
        at_first = count / (self.known + count).clamp(min=1)  # a plain mean
        share = torch.maximum(at_first, 1 - (1 - self.momentum) ** count)[:, None]
        self.class_mean += share * (one_hot.T @ each / divisor - self.class_mean)
        self.class_square += share * (one_hot.T @ square / divisor - self.class_square)
        self.known += count

    @torch.no_grad()
    def go_along(self, before: Moments, after: Moments) -> None:
        """Follow a change of the source's running statistics: when weights change, both domains move."""
        self.mean += after.mean - before.mean
        self.var *= (after.var / before.var.clamp(min=1e-8)).clamp(MOST**-2, MOST**2)

    def source(self, mix: Tensor) -> Moments:
        """The moments of the source if it had this class mix."""
        mean = mix @ self.class_mean
        return Moments(mean, (mix @ self.class_square - mean.square()).clamp(min=1e-8))

    def of_source(self) -> Moments:
        """The source's running statistics."""
        assert self.layer.running_mean is not None
        assert self.layer.running_var is not None
        return Moments(self.layer.running_mean.clone(), self.layer.running_var.clone())

    def corrected(self, found: Moments, mix: Tensor, prior: Tensor) -> Moments:
        """The statistics of a query as they would be if its classes were mixed like the source's."""
        usual, narrow = self.source(prior), self.source(mix)
        scale = (found.var / narrow.var).clamp(MOST**-2, MOST**2).sqrt()
        wider = (usual.var / narrow.var).clamp(MOST**-2, MOST**2)
        return Moments(found.mean + scale * (usual.mean - narrow.mean), found.var * wider)

    def without_classes(self, found: Moments, prior: Tensor) -> Moments:
        """The statistics of a query of unknown classes, without their difference to the source that classes explain."""
        source, usual = self.of_source(), self.source(prior)
        deviation = (source.var + self.layer.eps).sqrt()
        class_var = (self.class_square - self.class_mean.square()).clamp(min=1e-8)
        means = (self.class_mean - usual.mean) / deviation
        mean = unexplained((found.mean - source.mean) / deviation, means)
        log_var = unexplained(((found.var + 1e-8) / (source.var + 1e-8)).log(), (class_var / usual.var).log())
        return Moments(source.mean + mean * deviation, source.var * log_var.exp())

    def burst(self, prior: Tensor) -> float:
        """How far a query of a single class can move the mean, in variances: the largest over the classes."""
        usual = self.source(prior)
        return float(((self.class_mean - usual.mean).square() / (usual.var + self.layer.eps)).mean(dim=1).max())

    def follow(self, found: Moments, momentum: float) -> None:
        """Move the running statistics of the target.

        The means of very short queries differ from each other. That belongs to the variance of the stream too; without
        it, single images would let the variance decay.
        """
        apart = found.mean - self.mean
        between = (1 - momentum) * apart.square() if momentum < SLOW else 0.0
        self.mean += momentum * apart
        self.var += momentum * (found.var + between - self.var)


def running(layer: _BatchNorm) -> Moments:
    """The running statistics of a layer."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    return Moments(layer.running_mean, layer.running_var)


def channels(inputs: Tensor) -> tuple[int, ...]:
    """All dimensions but that of the channels."""
    return (0, *range(2, inputs.dim()))


def moments(inputs: Tensor) -> Moments:
    """Mean and variance of a batch."""
    var, mean = torch.var_mean(inputs, channels(inputs), correction=0)
    return Moments(mean, var)


def sample_moments(inputs: Tensor) -> Moments:
    """For each sample the mean, and the mean square, over its positions."""
    if inputs.dim() == 2:
        return Moments(inputs, inputs.square())
    var, mean = torch.var_mean(inputs, dim=(2, 3), correction=0)
    return Moments(mean, var + mean.square())


def blend(first: Moments, second: Moments | LayerStatistics, weight: float) -> Moments:
    """The first statistics, at this weight, and the second ones."""
    return Moments(torch.lerp(second.mean, first.mean, weight), torch.lerp(second.var, first.var, weight))


def unexplained(difference: Tensor, classes: Tensor) -> Tensor:
    """A difference without its part in the space of the classes' differences, one in each row.

    >>> unexplained(torch.tensor([3.0, 4.0]), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])).round(decimals=2)
    tensor([-0., 4.])
    """
    products = classes @ classes.T
    least = 1e-4 * products.diagonal().mean() + 1e-9  # the differences sum up to about zero
    ridge = least * torch.eye(len(classes), dtype=classes.dtype)
    explained: Tensor = torch.linalg.solve(products + ridge, classes @ difference) @ classes
    return difference - explained


def normalise(layer: _BatchNorm, inputs: Tensor, with_: Moments) -> Tensor:
    """Normalise a batch with given statistics."""
    return F.batch_norm(inputs, with_.mean, with_.var, layer.weight, layer.bias, False, 0.0, layer.eps)


def renormalise(layer: _BatchNorm, inputs: Tensor, found: Moments, wanted: Moments) -> Tensor:
    """Normalise with the wanted statistics, but let gradients flow through the batch's own.

        y = ((x − μ)/σ · r + d)·γ + β  with  r = σ/σ', d = (μ − μ')/σ'  without gradient

    The values are those of `normalise`. With its gradients, which know nothing of the other samples, learning collapses
    to one class within a few queries.
    """
    own, other = (found.var + layer.eps).sqrt(), (wanted.var + layer.eps).sqrt()
    scale, shift = own / other, (found.mean - wanted.mean) / other
    if layer.weight is not None:
        scale, shift = scale * layer.weight, shift * layer.weight
    if layer.bias is not None:
        shift = shift + layer.bias
    shape = (1, -1) + (1,) * (inputs.dim() - 2)
    normal = F.batch_norm(inputs, None, None, None, None, True, 0.0, layer.eps)
    return normal * scale.view(shape) + shift.view(shape)
