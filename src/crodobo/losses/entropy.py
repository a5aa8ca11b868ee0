"""ℓ_ent: how unsure the predictions are."""

import torch
from torch import Tensor


def entropies(logits: Tensor) -> Tensor:
    """Entropy of each predicted distribution, in nats.

    >>> entropies(torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
    tensor([0.6931, 0.0012])
    """
    log_probabilities = torch.log_softmax(logits, dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def entropy(logits: Tensor) -> Tensor:
    """Mean entropy of the predicted distributions, in nats.

    Minimising it moves the decision boundary away from the query's samples.

    Parameters
    ----------
    logits
        Samples × classes.

    Examples
    --------
    Large where nothing is decided (ln 2), small where everything is:

    >>> entropy(torch.tensor([[0.0, 0.0], [0.0, 0.0]]))
    tensor(0.6931)
    >>> entropy(torch.tensor([[9.0, 0.0], [0.0, 9.0]]))
    tensor(0.0012)
    """
    return entropies(logits).mean()
