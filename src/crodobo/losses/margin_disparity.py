"""MDD: an adversarial classifier that agrees on the source and disagrees on the target."""

import torch
from torch import Tensor
from torch.nn import functional as F


def margin_disparity(
    source_logits: Tensor, source_labels: Tensor, target_logits: Tensor, target_labels: Tensor, gamma: float
) -> Tensor:
    """γ · CE on the source, and −log(1 − p) on the target: what the adversarial classifier minimises.

    Parameters
    ----------
    source_logits, target_logits
        The adversarial classifier's logits, samples × classes.
    source_labels, target_labels
        The classes that the main classifier predicts.
    gamma
        The margin factor γ.

    Examples
    --------
    Small where the adversary agrees on the source and disagrees on the target, large where it is the other way round:

    >>> sure, label = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    >>> margin_disparity(sure, label, -sure, label, gamma=4.0)
    tensor(0.0907)
    >>> margin_disparity(-sure, label, sure, label, gamma=4.0)
    tensor(20.0907)
    """
    agreement = F.cross_entropy(source_logits, source_labels)
    # log(1 − p_y) as log Σ_{c≠y} e^z − log Σ_c e^z, which stays finite where p_y rounds to 1.
    others = target_logits.masked_fill(F.one_hot(target_labels, target_logits.shape[1]).bool(), -torch.inf)
    disagreement = target_logits.logsumexp(dim=1) - others.logsumexp(dim=1)
    return gamma * agreement + disagreement.mean()
