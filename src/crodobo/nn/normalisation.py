"""Which statistics the BatchNorm layers of a network use: the batch's, the running ones, or a mix.

A network stays in eval mode and only its BatchNorm layers are switched. Dropout and stochastic depth would draw from
torch's global generator, which parallel learners share. Without them the same seed gives the same predictions,
however the learners run.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from crodobo.config import Norm

FULL_TRUST = 32  # samples from which a query's own statistics get their full weight


def batch_norms(network: nn.Module) -> list[_BatchNorm]:
    """The BatchNorm layers of a network that keep running statistics."""
    return [layer for layer in network.modules() if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


def scales_and_shifts(network: nn.Module) -> list[nn.Parameter]:
    """The affine weights of all normalisation layers of a network."""
    kinds = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
    layers = [layer for layer in network.modules() if isinstance(layer, kinds)]
    return [weight for layer in layers for weight in (layer.weight, layer.bias) if weight is not None]


@contextmanager
def batch_statistics(layers: list[_BatchNorm], size: int) -> Iterator[None]:
    """Train mode: normalise with the batch's statistics and update the running ones.

    A batch of one has no statistics and is normalised with the running ones.
    """
    if size == 1:
        yield
        return
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


@contextmanager
def mixed_statistics(layers: list[_BatchNorm], running_weight: float) -> Iterator[None]:
    """Normalise with a mix of running and batch statistics. The running ones do not change."""
    if running_weight == 1:
        yield
        return
    kept: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def mix(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, _BatchNorm)
        assert layer.running_mean is not None
        assert layer.running_var is not None
        if inputs[0].shape[1] != layer.num_features:
            return  # the layer raises the error itself; the update below would write past its statistics
        kept[layer] = (layer.running_mean, layer.running_var)
        layer.running_mean, layer.running_var = layer.running_mean.clone(), layer.running_var.clone()
        # BatchNorm's own update, on copies. Its momentum is the batch's share of the mix; its variance is unbiased.
        torch.batch_norm_update_stats(inputs[0], layer.running_mean, layer.running_var, 1 - running_weight)

    def restore(layer: nn.Module) -> None:
        if layer in kept:
            layer.running_mean, layer.running_var = kept.pop(layer)

    hooks = [layer.register_forward_pre_hook(mix) for layer in layers]
    hooks += [layer.register_forward_hook(lambda layer, *_: restore(layer)) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer in list(kept):  # a forward that raised
            restore(layer)


def running_weight(norm: Norm, weight: float, size: int) -> float:
    """The weight of the running statistics when a query of `size` samples is predicted.

    `mixed` gives the running statistics `weight`, and more for a query of fewer than 32 samples, whose own statistics
    are noise. A query of one always uses the running statistics alone.

    >>> round(running_weight("mixed", 0.8, size=64), 3), running_weight("mixed", 0.8, size=1)
    (0.8, 1.0)
    >>> running_weight("running", 0.8, size=64), running_weight("query", 0.8, size=64)
    (1.0, 0.0)
    """
    if norm == "running" or size == 1:
        return 1.0
    if norm == "query":
        return 0.0
    return 1.0 - (1.0 - weight) * min(1.0, (size - 1) / (FULL_TRUST - 1))
