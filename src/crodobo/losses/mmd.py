"""MMD: the distance between two batches of features under five Gaussian kernels."""

import torch
from torch import Tensor

SCALES = tuple(2.0**k for k in range(-3, 2))


def mmd(source: Tensor, target: Tensor) -> Tensor:
    """Squared maximum mean discrepancy under a sum of Gaussian kernels exp(−‖Δ‖² / 2σ²).

    The widths are σ² = 2^k · mean‖Δ‖², k = −3…1. The mean is over all pairs of different samples in both batches, and
    no gradient flows into it. This is the biased estimate, which is never negative and is defined for a batch of one.
    The batches may differ in size.

    Examples
    --------
    Large if the batches are far apart, zero if they are the same:

    >>> batch = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> round(float(mmd(batch, batch + 5)), 3)
    6.883
    >>> abs(float(mmd(batch, batch))) < 1e-6
    True
    """
    both = torch.cat([source, target])
    squared = (both[:, None] - both[None]).square().sum(dim=2)
    pairs = len(both) * (len(both) - 1)
    mean = squared.detach().sum() / pairs
    if mean == 0:
        return squared.sum()  # all samples are the same point, so there is no width
    kernel = torch.stack([torch.exp(-squared / (2 * scale * mean)) for scale in SCALES]).sum(dim=0)
    first = len(source)
    within = kernel[:first, :first].mean() + kernel[first:, first:].mean()
    return within - 2 * kernel[:first, first:].mean()
