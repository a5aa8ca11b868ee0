"""ℓ_t: learn a query's strong view from the peers' confident pseudo-labels of its weak view."""

import torch
from torch import Tensor
from torch.nn import functional as F


def co_supervision(strong_logits: Tensor, peer_probabilities: Tensor, tau: float) -> Tensor:
    """Cross-entropy to the peers' confident pseudo-labels, divided by the size of the whole batch.

    A pseudo-label counts from the confidence τ. No gradient flows into the peers' mean probabilities of the weak view.

    Examples
    --------
    Large if learner and peer differ, small if they agree, zero if the peer is uncertain:

    >>> learner = torch.tensor([[3.0, 0.0]])
    >>> round(float(co_supervision(learner, torch.tensor([[0.01, 0.99]]), tau=0.95)), 3)
    3.049
    >>> round(float(co_supervision(learner, torch.tensor([[0.99, 0.01]]), tau=0.95)), 3)
    0.049
    >>> round(float(co_supervision(learner, torch.tensor([[0.10, 0.90]]), tau=0.95)), 3)
    0.0
    """
    confidence, pseudo_labels = peer_probabilities.detach().max(dim=1)
    losses = F.cross_entropy(strong_logits, pseudo_labels, reduction="none")
    return torch.where(confidence >= tau, losses, 0.0).sum() / len(losses)
