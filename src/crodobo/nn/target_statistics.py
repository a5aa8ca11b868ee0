"""TargetStatistics: a network's BatchNorm statistics of the target, corrected for the classes of each query.

The mean and variance of a query depend on two things: on its domain, which is to be normalised away, and on its
classes, which are to be recognised. If a query has all classes the second part is the same as in the source, and the
query's own statistics serve. If it has one class they would remove exactly what tells that class from the others.

The labelled source says what a mix of classes does to the statistics of a layer. With m(w), s(w) the mean and standard
deviation of the source under the class mix w, and π the source's own mix, the statistics that the query would have had
with the source's mix are

    μ' = μ + σ/s(w) · (m(π) − m(w))        σ' = σ · s(π)/s(w)

Here μ and σ are the query's own and w is its estimated mix. For w = π nothing changes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from crodobo.nn.normalisation import batch_statistics, mixed_statistics

SOURCE_MOMENTUM = 0.05  # how far one source sample moves the moments of its class
SLOW = 0.0125  # momentum of a query of 8; shorter ones have too little variance of their own
MOST = 3.0  # largest factor of a correction to a standard deviation


class QueryNorm(NamedTuple):
    """How a query is normalised."""

    mix: Tensor | None = None  # its estimated class mix; None if that is like the source's
    own: float = 0.2  # weight of its own statistics at prediction; the rest are the target's running ones
    learned_own: float = 1.0  # the same while it is learned
    momentum: float = 0.1  # how far the running statistics follow a forward in train mode; 0.1 is BatchNorm's usual


class Moments(NamedTuple):
    """Mean and variance of each channel."""

    mean: Tensor
    var: Tensor


class LayerStatistics:
    """One layer: the target's running statistics, and the moments of each class in the source."""

    def __init__(self, layer: _BatchNorm, classes: int) -> None:
        source = running(layer)
        self.layer = layer
        self.mean, self.var = source.mean.clone(), source.var.clone()
        self.class_mean = source.mean.new_zeros(classes, layer.num_features)
        self.class_square = self.class_mean.clone()
        self.known = source.mean.new_zeros(classes)  # samples of each class so far

    @torch.no_grad()
    def add_source(self, inputs: Tensor, one_hot: Tensor) -> None:
        """Move the moments of the classes towards those of a labelled batch."""
        each, square = sample_moments(inputs)
        count = one_hot.sum(dim=0)
        share = torch.where(self.known > 0, 1 - (1 - SOURCE_MOMENTUM) ** count, (count > 0).to(count.dtype))[:, None]
        divisor = count.clamp(min=1)[:, None]
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


class TargetStatistics:
    """The statistics of all BatchNorm layers of a network."""

    def __init__(self, layers: list[_BatchNorm], prior: Tensor) -> None:
        self._norms, self.prior = layers, prior
        self.layers = [LayerStatistics(layer, len(prior)) for layer in layers]

    @torch.no_grad()
    def begin(self) -> None:
        """Begin with the statistics of the source. Classes that were not met yet count as the whole of it."""
        for each in self.layers:
            source = running(each.layer)
            each.mean.copy_(source.mean)
            each.var.copy_(source.var)
            each.class_mean[each.known == 0] = each.mean
            each.class_square[each.known == 0] = each.var + each.mean.square()

    def tensors(self) -> dict[str, Tensor]:
        """All statistics by name. These are the tensors in use, not copies."""
        names = ("mean", "var", "class_mean", "class_square", "known")
        return {f"{number}.{name}": getattr(each, name) for number, each in enumerate(self.layers) for name in names}

    @contextmanager
    def source(self, labels: Tensor | None) -> Iterator[None]:
        """Go along with the source's statistics while a batch of it goes through the network in train mode.

        With its labels, the moments of the classes follow too. That takes longer.
        """
        hooks = []
        if labels is None:
            state = [each.of_source() for each in self.layers]
        else:
            state = [each.source(self.prior) for each in self.layers]
            one_hot = F.one_hot(labels, len(self.prior)).to(self.prior.dtype)
            hooks = [
                each.layer.register_forward_pre_hook(lambda _, inputs, each=each: each.add_source(inputs[0], one_hot))
                for each in self.layers
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        for each, before in zip(self.layers, state, strict=True):
            each.go_along(before, each.of_source() if labels is None else each.source(self.prior))

    @contextmanager
    def learning(self, norm: QueryNorm, samples: int) -> Iterator[None]:
        """Train mode for a query, or a view of it. The running statistics of the target follow it."""
        if samples > 1 and norm.mix is None and norm.learned_own == 1:  # the common case, without a detour
            with self.swapped(norm.momentum), batch_statistics(self._norms, samples):
                yield
            return

        def forward(each: LayerStatistics, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                found = moments(inputs)
                wanted = found if norm.mix is None else each.corrected(found, norm.mix, self.prior)
                effective = blend(wanted, each, norm.learned_own)
                each.follow(wanted, norm.momentum)
            if not torch.is_grad_enabled() or samples == 1:
                return normalise(each.layer, inputs, effective)
            return renormalise(each.layer, inputs, found, effective)

        with self._replaced(forward):
            yield

    @contextmanager
    def predicting(self, norm: QueryNorm, samples: int) -> Iterator[None]:
        """Normalise with the target's running statistics and, in part, with the query's own."""
        own = 0.0 if samples == 1 else norm.own
        if norm.mix is None or own == 0:
            with self.swapped(), mixed_statistics(self._norms, 1 - own):
                yield
            return
        mix = norm.mix

        def forward(each: LayerStatistics, inputs: Tensor) -> Tensor:
            return normalise(each.layer, inputs, blend(each.corrected(moments(inputs), mix, self.prior), each, own))

        with self._replaced(forward):
            yield

    @contextmanager
    def swapped(self, momentum: float | None = None) -> Iterator[None]:
        """Put the target's running statistics in the place of the source's."""
        kept = [(layer.running_mean, layer.running_var, layer.momentum) for layer in self._norms]
        for layer, each in zip(self._norms, self.layers, strict=True):
            layer.running_mean, layer.running_var, layer.momentum = each.mean, each.var, momentum
        try:
            yield
        finally:
            for layer, old in zip(self._norms, kept, strict=True):
                layer.running_mean, layer.running_var, layer.momentum = old

    @contextmanager
    def _replaced(self, forward: Callable[[LayerStatistics, Tensor], Tensor]) -> Iterator[None]:
        """Let the layers compute something else."""
        for each in self.layers:
            each.layer.forward = partial(forward, each)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for each in self.layers:
                del each.layer.forward


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


def blend(found: Moments, running: LayerStatistics, own: float) -> Moments:
    """A query's own statistics, at this weight, and the running ones."""
    return Moments(torch.lerp(running.mean, found.mean, own), torch.lerp(running.var, found.var, own))


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
