"""ℓ_div: how unevenly the predictions of a query spread over the classes."""

import math

import torch
from torch import Tensor

SHARE = 0.1  # of a query in the moving mean of the predictions


def diversity(logits: Tensor, usual: Tensor | None = None) -> Tensor:
    """Negative entropy of the mean prediction of a batch, Σ_c p̄_c log p̄_c.

    Minimising it spreads the predictions over the classes. With entropy alone they collapse to one class.

    Examples
    --------
    Large (near 0) if all samples have one class, small (−ln 2) if they are spread:

    >>> round(float(diversity(torch.tensor([[9.0, 0.0], [9.0, 0.0]]))), 3)
    -0.001
    >>> round(float(diversity(torch.tensor([[99.0, 0.0], [0.0, 99.0]]))), 3)
    -0.693

    With the `usual` predictions of the stream, the mean is a moving one, m = 0.9·usual + 0.1·p̄, and the result
    Σ_c m_c log m_c / 0.1. A query of one class is then not pushed into the others; it only matters which classes are
    predicted too often in the long run.

    >>> burst = torch.tensor([[0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    >>> diversity(burst, torch.tensor([0.9, 0.1])).backward()
    >>> burst.grad[0] > 0
    tensor([ True, False])
    """
    # In log space a class without any sample still has a finite gradient.
    log_mean = torch.log_softmax(logits, dim=1).logsumexp(dim=0) - math.log(len(logits))
    if usual is None:
        return (log_mean.exp() * log_mean).sum()
    mean = torch.lerp(usual, log_mean.exp(), SHARE).clamp(min=1e-8)
    return (mean * mean.log()).sum() / SHARE
