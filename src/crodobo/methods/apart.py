"""Answers for several owners: what one of them gets does not depend on the samples of the others."""

from collections.abc import Callable

import torch
from torch import Tensor

from crodobo.core.prediction import Prediction

Answer = Callable[[Tensor], Prediction]


def answer_apart(
    images: Tensor, owners: Tensor, own: Callable[[Tensor], Tensor], together: Answer, alone: Answer
) -> Prediction:
    """Predict the samples of each owner by themselves, and put the rows together.

    The learners' agreement is left out: it would be about all owners.

    Parameters
    ----------
    images
        The samples of a query.
    owners
        The number of each sample's owner.
    own
        Takes a copy of some images, so that it is erased.
    together
        Predicts several samples of one owner, which may share their statistics.
    alone
        Predicts samples that are each the only one of their owner. It treats every sample by itself.

    >>> double = lambda images: Prediction(2 * images)
    >>> answer_apart(torch.eye(3), torch.tensor([7, 1, 7]), Tensor.clone, double, double).probabilities
    tensor([[2., 0., 0.],
            [0., 2., 0.],
            [0., 0., 2.]])
    """
    samples = owners.unique(return_inverse=True, return_counts=True)
    number, count = samples[1], samples[2]
    single = count[number] == 1
    parts = [(number == group, together) for group in range(len(count)) if count[group] > 1]
    parts += [(single, alone)] if single.any() else []
    answers = [(rows, answer(own(images[rows])).probabilities) for rows, answer in parts]
    first = answers[0][1]
    probabilities = torch.empty(len(images), first.shape[1], dtype=first.dtype)
    for rows, each in answers:
        probabilities[rows] = each
    return Prediction(probabilities)
