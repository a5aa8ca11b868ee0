"""TargetStatistics: a network's BatchNorm statistics of the target, corrected for the classes of each query.

The mean and variance of a query depend on two things: on its domain, which is to be normalised away, and on its
classes, which are to be recognised. If a query has all classes the second part is the same as in the source, and the
query's own statistics serve. If it has one class they would remove exactly what tells that class from the others.

The labelled source says what a mix of classes does to the statistics of a layer. With m(w), s(w) the mean and standard
deviation of the source under the class mix w, and π the source's own mix, the statistics that the query would have had
with the source's mix are

    μ' = μ + σ/s(w) · (m(π) − m(w))        σ' = σ · s(π)/s(w)

Here μ and σ are the query's own and w is its estimated mix. For w = π nothing changes.

Where w cannot be estimated, because the learners know too little, the part of the difference to the source that a mix
of classes could explain is left out: the projection of μ − m(π) on the differences between the source's classes, and
that of log σ² in the same way. What remains is of the domain, whatever the classes are.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from crodobo.nn.layer_statistics import LayerStatistics, Moments, blend, moments, normalise, renormalise, running
from crodobo.nn.normalisation import batch_statistics, mixed_statistics


class QueryNorm(NamedTuple):
    """How a query is normalised."""

    mix: Tensor | None = None  # its estimated class mix; None if that is like the source's
    own: float = 0.2  # weight of its own statistics at prediction; the rest are the target's running ones
    learned_own: float = 1.0  # the same while it is learned
    momentum: float = 0.1  # how far the running statistics follow a forward in train mode; 0.1 is BatchNorm's usual
    doubt: float = 0.0  # if no mix is estimated: how far to leave out what classes could explain

    @property
    def plain(self) -> bool:
        """Whether the query's statistics are used as they are."""
        return self.mix is None and not self.doubt


class TargetStatistics:
    """The statistics of all BatchNorm layers of a network."""

    def __init__(self, layers: list[_BatchNorm], prior: Tensor, momentum: float) -> None:
        self._norms, self.prior = layers, prior
        self.layers = [LayerStatistics(layer, len(prior), momentum) for layer in layers]

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
        if samples > 1 and norm.plain and norm.learned_own == 1:  # the common case, without a detour
            with self.swapped(norm.momentum), batch_statistics(self._norms, samples):
                yield
            return

        def forward(each: LayerStatistics, inputs: Tensor) -> Tensor:
            with torch.no_grad():
                found = moments(inputs)
                wanted = self._wanted(each, found, norm)
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
        if norm.plain or own == 0:
            with self.swapped(), mixed_statistics(self._norms, 1 - own):
                yield
            return

        def forward(each: LayerStatistics, inputs: Tensor) -> Tensor:
            return normalise(each.layer, inputs, blend(self._wanted(each, moments(inputs), norm), each, own))

        with self._replaced(forward):
            yield

    def _wanted(self, each: LayerStatistics, found: Moments, norm: QueryNorm) -> Moments:
        """The statistics of a query without the effect of its classes."""
        if norm.mix is not None:
            return each.corrected(found, norm.mix, self.prior)
        if not norm.doubt:
            return found
        return blend(each.without_classes(found, self.prior), found, norm.doubt)

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
