"""ℓ_ent: the uncertainty of the predictions."""

import torch
from torch import Tensor


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each predicted distribution, in nats.

    >>> [round(value, 3) for value in entropies(torch.tensor([[0.0, 0.0], [9.0, 0.0]])).tolist()]
    [0.693, 0.001]
    """
    log_probabilities = torch.log_softmax(logits, dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predicted distributions, in nats.

    Minimising it moves the decision boundary away from the query's samples.

    Examples
    --------
    Large (ln 2) if no sample is decided, small if all are:

    >>> round(float(entropy(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))), 3)
    0.693
    >>> round(float(entropy(torch.tensor([[9.0, 0.0], [0.0, 9.0]]))), 3)
    0.001
    """
    return entropies(logits).mean()
