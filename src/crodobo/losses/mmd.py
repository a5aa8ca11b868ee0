"""MMD: how far apart two batches of features are, as seen by five Gaussian kernels."""

import torch
from torch import Tensor

SCALES = tuple(2.0**k for k in range(-3, 2))


def mmd(source: Tensor, target: Tensor) -> Tensor:
    """Squared maximum mean discrepancy under a sum of Gaussian kernels exp(−‖Δ‖² / 2σ²).

    The widths are σ² = 2^k · mean‖Δ‖², k = −3…1, with the mean over all pairs of different samples of the two batches
    together, taken as given (no gradient flows into the widths). It is the biased estimate: never negative, and
    defined for a batch of one.

    Parameters
    ----------
    source, target
        Features, samples × dimensions; the batches may differ in size.

    Examples
    --------
    Large where the batches lie apart, zero where they are the same:

    >>> batch = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> mmd(batch, batch + 5)
    tensor(6.8828)
    >>> abs(round(float(mmd(batch, batch)), 6))
    0.0
    """
    both = torch.cat([source, target])
    squared = (both[:, None] - both[None]).square().sum(dim=2)
    pairs = len(both) * (len(both) - 1)
    mean = squared.detach().sum() / pairs
    if mean == 0:
        return squared.sum()  # all samples are one point: nothing to tell apart, and no width to measure with
    kernel = torch.stack([torch.exp(-squared / (2 * scale * mean)) for scale in SCALES]).sum(dim=0)
    first = len(source)
    within = kernel[:first, :first].mean() + kernel[first:, first:].mean()
    return within - 2 * kernel[:first, first:].mean()
