"""Adversarial alignment: tell the domains apart, and learn features with which that is impossible."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, features: Tensor, coefficient: float) -> Tensor:
        ctx.coefficient = coefficient  # type: ignore[attr-defined]
        return features.view_as(features)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        return -ctx.coefficient * gradients[0], None  # type: ignore[attr-defined]


def reverse_gradient(features: Tensor, coefficient: float) -> Tensor:
    """The features as they are; their gradient is turned round and scaled on its way back.

    >>> features = torch.tensor([1.0], requires_grad=True)
    >>> (3 * reverse_gradient(features, 0.5)).sum().backward()
    >>> features.grad
    tensor([-1.5000])
    """
    reversed_features: Tensor = _Reverse.apply(features, coefficient)
    return reversed_features


def ramp(progress: float, ceiling: float = 1.0) -> float:
    """The reversal's coefficient, from 0 up to the ceiling: 2 / (1 + e^(−10·progress)) − 1 of it.

    >>> ramp(0.0), round(ramp(0.1), 3), round(ramp(1.0), 3)
    (0.0, 0.462, 1.0)
    """
    return ceiling * (2 / (1 + math.exp(-10 * progress)) - 1)


def domain_confusion(
    source_logits: Tensor,
    target_logits: Tensor,
    source_weights: Tensor | None = None,
    target_weights: Tensor | None = None,
) -> Tensor:
    """Binary cross-entropy of a domain discriminator: source is 1, target is 0, each domain half of it.

    Parameters
    ----------
    source_logits, target_logits
        The discriminator's logits, one a sample.
    source_weights, target_weights
        Weights of the samples; only their share within the domain counts.

    Examples
    --------
    Large where the domains are taken for each other, small where they are told apart:

    >>> domain_confusion(torch.tensor([-4.0]), torch.tensor([4.0]))
    tensor(4.0181)
    >>> domain_confusion(torch.tensor([4.0]), torch.tensor([-4.0]))
    tensor(0.0181)
    """

    def half(logits: Tensor, truth: float, weights: Tensor | None) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth), reduction="none")
        return losses.mean() if weights is None else (weights * losses).sum() / weights.sum()

    return (half(source_logits, 1.0, source_weights) + half(target_logits, 0.0, target_weights)) / 2
