"""MixMatch as a loss of one learner: mixtures of a source batch and a query's views."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.core.source import SourceBatch
from crodobo.losses import mixmatch, mixup, sharpen
from crodobo.nn.learner import Learner

TEMPERATURE = 0.5
BETA = 0.75


def mixed_loss(
    learner: Learner, source: SourceBatch, views: tuple[Tensor, ...], guess: Tensor, own: Callable[[Tensor], Tensor]
) -> Tensor:
    """Mix labelled source samples and weak views of the query, and learn the mixtures.

    The guess is the mean prediction of the query. Sharpened, it gives the labels of the views. Tensors with pixels of
    the query go through `own`, so that the query erases them.
    """
    sharp, labelled = sharpen(guess, TEMPERATURE), len(source.labels)
    everything = own(torch.cat([source.images, *views]))
    truth = F.one_hot(source.labels, guess.shape[1]).to(guess.dtype)
    labels = torch.cat([truth, *[sharp] * len(views)])
    order = torch.randperm(len(everything), generator=learner.generator)
    share = beta(len(everything), learner.generator)
    others = own(everything[order])
    logits = learner.forward(own(mixup(everything, others, share)))
    labels = mixup(labels, labels[order], share)
    return mixmatch(logits[:labelled], labels[:labelled], logits[labelled:], labels[labelled:])


def beta(size: int, generator: Generator) -> Tensor:
    """Draw max(b, 1 − b) with b ~ Beta(0.75, 0.75): the larger share, so a mixture stays closer to its first sample.

    >>> draws = beta(1000, Generator().manual_seed(0))
    >>> bool(((draws >= 0.5) & (draws <= 1)).all())
    True
    """
    one, other = torch._standard_gamma(torch.full((2, size), BETA), generator=generator)
    share = one / (one + other).clamp_min(torch.finfo(one.dtype).tiny)
    return torch.maximum(share, 1 - share)
