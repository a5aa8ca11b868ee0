"""Adversarial alignment: a discriminator separates the domains, and the features learn to prevent it."""

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
    """Identity in the forward pass. The backward pass reverses and scales the gradient.

    >>> features = torch.tensor([1.0], requires_grad=True)
    >>> (3 * reverse_gradient(features, 0.5)).sum().backward()
    >>> features.grad
    tensor([-1.5000])
    """
    reversed_features: Tensor = _Reverse.apply(features, coefficient)
    return reversed_features


def ramp(progress: float, ceiling: float = 1.0) -> float:
    """The coefficient of the reversal, which rises from 0 to the ceiling: 2 / (1 + e^(−10·progress)) − 1, scaled.

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
    """Binary cross-entropy of a domain discriminator: source is 1, target is 0, and each domain counts half.

    The discriminator gives one logit per sample. Weights of samples are normalised within their domain.

    Examples
    --------
    Large if the domains are confused, small if they are separated:

    >>> round(float(domain_confusion(torch.tensor([-4.0]), torch.tensor([4.0]))), 3)
    4.018
    >>> round(float(domain_confusion(torch.tensor([4.0]), torch.tensor([-4.0]))), 3)
    0.018
    """

    def half(logits: Tensor, truth: float, weights: Tensor | None) -> Tensor:
        losses = F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, truth), reduction="none")
        return losses.mean() if weights is None else (weights * losses).sum() / weights.sum()

    return (half(source_logits, 1.0, source_weights) + half(target_logits, 0.0, target_weights)) / 2
