"""ℓ_div: how unevenly a query's predictions fall on the classes."""

import math

import torch
from torch import Tensor


def diversity(logits: Tensor) -> Tensor:
    """Negative entropy of the mean prediction of a batch, Σ_c p̄_c log p̄_c.

    Minimising it spreads the predictions over the classes, against the collapse that entropy alone invites.

    Parameters
    ----------
    logits
        Samples × classes.

    Examples
    --------
    Large (near 0) where all samples fall on one class, small (−ln 2) where they are spread:

    >>> diversity(torch.tensor([[9.0, 0.0], [9.0, 0.0]]))
    tensor(-0.0012)
    >>> diversity(torch.tensor([[99.0, 0.0], [0.0, 99.0]]))
    tensor(-0.6931)
    """
    # The mean is taken in log space, where a class that no sample is given keeps a finite gradient.
    log_mean = torch.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))
    return (log_mean.exp() * log_mean).sum()
