"""MixMatch: learn mixtures of labelled samples and unlabelled ones, whose labels are sharpened guesses."""

import torch
from torch import Tensor


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Distributions raised to 1/T and normalised.

    >>> [round(value, 3) for value in sharpen(torch.tensor([[0.6, 0.4]]), temperature=0.5)[0].tolist()]
    [0.692, 0.308]
    """
    return torch.softmax(probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log() / temperature, dim=1)


def mixup(one: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """For each sample, `share` of one tensor and the rest of the other.

    >>> mixed = mixup(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [0.0]]), torch.tensor([0.75, 0.5]))
    >>> [round(value, 3) for value in mixed.flatten().tolist()]
    [0.75, 0.5]
    """
    share = share.reshape(-1, *[1] * (one.dim() - 1))
    return share * one + (1 - share) * other


def mixmatch(labelled_logits: Tensor, labels: Tensor, unlabelled_logits: Tensor, guesses: Tensor) -> Tensor:
    """Cross-entropy on the mixed labelled part, squared error to the guesses on the mixed unlabelled part.

    Labels and guesses are distributions. The squared error is summed over the classes and averaged over the samples.

    Examples
    --------
    Large if the predictions differ from labels and guesses, small if they match:

    >>> truth, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 0.0]])
    >>> round(float(mixmatch(-logits, truth, -logits, truth)), 3)
    5.947
    >>> round(float(mixmatch(logits, truth, logits, truth)), 3)
    0.019
    """
    supervised = -(labels * torch.log_softmax(labelled_logits, dim=1)).sum(dim=1).mean()
    unsupervised = (torch.softmax(unlabelled_logits, dim=1) - guesses).square().sum(dim=1).mean()
    return supervised + unsupervised
