"""MixMatch: learn mixtures of labelled and unlabelled samples, the latter with sharpened guesses for labels."""

import torch
from torch import Tensor


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Distributions raised to 1/T and normalised.

    >>> sharpen(torch.tensor([[0.6, 0.4]]), temperature=0.5)
    tensor([[0.6923, 0.3077]])
    """
    return torch.softmax(probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log() / temperature, dim=1)


def mixup(one: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """Sample by sample, `share` of the one and the rest of the other.

    >>> mixup(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [0.0]]), torch.tensor([0.75, 0.5]))
    tensor([[0.7500],
            [0.5000]])
    """
    share = share.reshape(-1, *[1] * (one.dim() - 1))
    return share * one + (1 - share) * other


def mixmatch(labelled_logits: Tensor, labels: Tensor, unlabelled_logits: Tensor, guesses: Tensor) -> Tensor:
    """Cross-entropy on the mixed labelled part, squared error to the guesses on the mixed unlabelled part.

    The squared error is summed over the classes and averaged over the samples.

    Parameters
    ----------
    labelled_logits, labels
        Logits and label distributions of the labelled part, samples × classes.
    unlabelled_logits, guesses
        Logits and guessed distributions of the unlabelled part.

    Examples
    --------
    Large where the predictions are far from labels and guesses, small where they are near:

    >>> truth, logits = torch.tensor([[1.0, 0.0]]), torch.tensor([[4.0, 0.0]])
    >>> mixmatch(-logits, truth, -logits, truth)
    tensor(5.9469)
    >>> mixmatch(logits, truth, logits, truth)
    tensor(0.0188)
    """
    supervised = -(labels * torch.log_softmax(labelled_logits, dim=1)).sum(dim=1).mean()
    unsupervised = (torch.softmax(unlabelled_logits, dim=1) - guesses).square().sum(dim=1).mean()
    return supervised + unsupervised
