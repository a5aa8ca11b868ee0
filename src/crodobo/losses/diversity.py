"""ℓ_div: how unevenly the predictions of a query spread over the classes."""

import math

import torch
from torch import Tensor


def diversity(logits: Tensor) -> Tensor:
    """Negative entropy of the mean prediction of a batch, Σ_c p̄_c log p̄_c.

    Minimising it spreads the predictions over the classes. With entropy alone they collapse to one class.

    Examples
    --------
    Large (near 0) if all samples have one class, small (−ln 2) if they are spread:

    >>> round(float(diversity(torch.tensor([[9.0, 0.0], [9.0, 0.0]]))), 3)
    -0.001
    >>> round(float(diversity(torch.tensor([[99.0, 0.0], [0.0, 99.0]]))), 3)
    -0.693
    """
    # In log space a class without any sample still has a finite gradient.
    log_mean = torch.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))
    return (log_mean.exp() * log_mean).sum()
