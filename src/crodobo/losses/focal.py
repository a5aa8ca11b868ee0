"""Focal loss: cross-entropy with less weight on samples that are already correct, for unbalanced classes."""

import torch
from torch import Tensor
from torch.nn import functional as F


def focal(logits: Tensor, labels: Tensor, gamma: float = 2.0) -> Tensor:
    """Mean of −(1 − p_y)^γ log p_y. γ = 0 gives cross-entropy; the larger γ, the less a correct sample counts.

    Examples
    --------
    Large if the class is wrong, and much smaller than cross-entropy (0.127) if it is correct:

    >>> round(float(focal(torch.tensor([[0.0, 2.0]]), torch.tensor([0]))), 3)
    1.65
    >>> round(float(focal(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))), 3)
    0.002
    """
    losses = F.cross_entropy(logits, labels, reduction="none")
    missed = (-torch.expm1(-losses)).clamp_min(torch.finfo(losses.dtype).tiny)  # 1 − p, kept above 0 for its gradient
    return (missed.pow(gamma) * losses).mean()
