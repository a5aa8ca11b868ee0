"""MDD: an adversarial classifier that agrees on the source and disagrees on the target."""

import torch
from torch import Tensor
from torch.nn import functional as F


def margin_disparity(
    source_logits: Tensor, source_labels: Tensor, target_logits: Tensor, target_labels: Tensor, gamma: float
) -> Tensor:
    """The loss of the adversarial classifier: γ · CE on the source, −log(1 − p) on the target.

    The logits are the adversarial classifier's. The labels are the predictions of the main classifier.

    Examples
    --------
    Small if the adversary agrees on the source and disagrees on the target, large in the opposite case:

    >>> sure, label = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    >>> round(float(margin_disparity(sure, label, -sure, label, gamma=4.0)), 3)
    0.091
    >>> round(float(margin_disparity(-sure, label, sure, label, gamma=4.0)), 3)
    20.091
    """
    agreement = F.cross_entropy(source_logits, source_labels)
    # log(1 − p_y) as log Σ_{c≠y} e^z − log Σ_c e^z, which stays finite if p_y rounds to 1.
    others = target_logits.masked_fill(F.one_hot(target_labels, target_logits.shape[1]).bool(), -torch.inf)
    disagreement = target_logits.logsumexp(dim=1) - others.logsumexp(dim=1)
    return gamma * agreement + disagreement.mean()
