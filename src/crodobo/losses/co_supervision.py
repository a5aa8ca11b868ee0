"""ℓ_t: learn a query's strong view from the peers' confident pseudo-labels of its weak view."""

import torch
from torch import Tensor
from torch.nn import functional as F


def co_supervision(strong_logits: Tensor, peer_probabilities: Tensor, tau: float) -> Tensor:
    """Cross-entropy to the peers' pseudo-labels where they are confident, divided by the whole batch.

    Parameters
    ----------
    strong_logits
        The learner's logits of the strong view, samples × classes.
    peer_probabilities
        The peers' mean probabilities of the weak view; taken as given, no gradient flows into them.
    tau
        Confidence from which on a pseudo-label counts.

    Examples
    --------
    Large where learner and peer differ, small where they agree, zero where the peer is not sure:

    >>> learner = torch.tensor([[3.0, 0.0]])
    >>> co_supervision(learner, torch.tensor([[0.01, 0.99]]), tau=0.95)
    tensor(3.0486)
    >>> co_supervision(learner, torch.tensor([[0.99, 0.01]]), tau=0.95)
    tensor(0.0486)
    >>> co_supervision(learner, torch.tensor([[0.10, 0.90]]), tau=0.95)
    tensor(0.)
    """
    confidence, pseudo_labels = peer_probabilities.detach().max(dim=1)
    losses = F.cross_entropy(strong_logits, pseudo_labels, reduction="none")
    return torch.where(confidence >= tau, losses, 0.0).sum() / len(losses)
