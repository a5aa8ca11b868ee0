"""What is found in a query, and what may be learned from it."""

from typing import NamedTuple

import torch
from torch import Tensor

from crodobo.core.prediction import Reason
from crodobo.guard.reference import Look
from crodobo.nn.target_statistics import QueryNorm


class Lesson(NamedTuple):
    """What the learners may learn from a query."""

    weight: float = 1.0  # of the losses on the target, and of the step; 0 if only the source is learned
    usual: Tensor | None = None  # the usual predictions, if the query has too few classes to stand for the stream
    least_source: int = 1  # least size of the source batch beside the query
    reason: Reason | None = None  # why nothing is learned from the target


class View(NamedTuple):
    """What reference and learners found in a query."""

    norm: QueryNorm
    look: Look
    mine: Tensor | None  # what the learners see in it, if the reference does not see the usual classes
    far: bool  # whether it is of another domain than the stream so far
    new: bool  # whether the stream has changed its domain for good
    mixed: bool  # whether the reference sees the usual classes
    narrowness: float
    missed: float  # how certain it is that it is part of a burst which the learners do not see


def some(images: Tensor, most: int) -> Tensor:
    """At most so many of the images, evenly spaced."""
    return images if len(images) <= most else images[torch.arange(most) * len(images) // most]


def mean(predictions: list[Tensor]) -> Tensor:
    """The mean of the learners' predictions."""
    return torch.stack(predictions).mean(dim=0)
