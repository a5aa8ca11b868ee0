"""CORAL: how much the covariances of two batches of features differ."""

import torch
from torch import Tensor


def coral(source: Tensor, target: Tensor) -> Tensor:
    """Squared Frobenius distance of the covariances, ‖C_s − C_t‖²_F / 4d².

    Public versions differ by a factor of a thousand and more: some leave the 4d² out, some average over the entries.
    This is the formula of the CORAL paper, with covariances that divide by n − 1.

    Parameters
    ----------
    source, target
        Features, samples × d. A batch of one has no covariance; the loss is then zero.

    Examples
    --------
    Large where one batch is spread and the other is not, zero where only the place differs:

    >>> batch = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    >>> coral(3 * batch, batch)
    tensor(17.7778)
    >>> coral(batch + 5, batch)
    tensor(0.)
    """
    if len(source) < 2 or len(target) < 2:
        return (source.sum() + target.sum()) * 0.0
    difference = torch.cov(source.T) - torch.cov(target.T)
    return difference.square().sum() / (4 * source.shape[1] ** 2)
