"""CORAL: the distance between the covariances of two batches of features."""

import torch
from torch import Tensor


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Squared Frobenius distance of the covariances, ‖C_s − C_t‖²_F / 4d².

    Public versions differ by a factor of a thousand and more: some omit the 4d², some average over the entries. This is
    the formula of the CORAL paper, with covariances that divide by n − 1. For a batch of one, which has no covariance,
    the loss is zero.

    Examples
    --------
    Large if only one batch is spread, zero if the batches differ only by a shift:

    >>> batch = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> round(float(coral(3 * batch, batch)), 3)
    17.778
    >>> float(coral(batch + 5, batch)) < 1e-6
    True
    """
    if len(source) < 2 or len(target) < 2:
        return (source.sum() + target.sum()) * 0.0
    difference = torch.cov(source.T) - torch.cov(target.T)
    return difference.square().sum() / (4 * source.shape[1] ** 2)
