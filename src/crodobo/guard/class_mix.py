"""ClassMix: how evenly samples spread over the classes, estimated from their predictions."""

import math
from typing import Self

import torch
from torch import Tensor

HALF = 0.5  # a mix is narrow if it has less than half the usual number of further classes


class ClassMix:
    """Sums over the predictions of recent samples. Older samples fade.

    Parameters
    ----------
    classes
        The number of classes.
    horizon
        The number of samples that count. When more come, earlier ones count less.

    Examples
    --------
    >>> mix = ClassMix.of(torch.eye(4)[[0, 0, 1, 1, 2, 2, 3, 3]])
    >>> round(mix.same, 3), round(mix.effective_classes, 3)
    (0.143, 4.0)
    """

    def __init__(self, classes: int, horizon: int) -> None:
        self.horizon = horizon
        # The sum of the predictions, of their squared lengths, of their weights, and of the squared weights.
        self.numbers = torch.zeros(classes + 3, dtype=torch.float64)

    @classmethod
    def of(cls, probabilities: Tensor) -> Self:
        """The mix of these samples."""
        mix = cls(probabilities.shape[1], horizon=len(probabilities))
        mix.add(probabilities)
        return mix

    def add(self, probabilities: Tensor) -> None:
        """Count samples. Earlier ones fade if the horizon has no room for all."""
        count = len(probabilities)
        before = float(self.numbers[-2])
        if before + count > self.horizon:
            fade = max(0, self.horizon - count) / before if before else 0.0
            self.numbers[:-3] *= fade
            self.numbers[-3:] *= torch.tensor([fade**2, fade, fade**2], dtype=torch.float64)
        sums = torch.cat([probabilities.sum(dim=0), probabilities.square().sum()[None]])
        self.numbers += torch.cat([sums.double(), torch.tensor([count, count], dtype=torch.float64)])

    def clear(self) -> None:
        """Start again."""
        self.numbers.zero_()

    @property
    def samples(self) -> float:
        """The effective number of samples. It is lower than the count, because faded samples count less."""
        weight, squares = self.numbers[-2:].tolist()
        return weight**2 / squares if squares else 0.0

    @property
    def same(self) -> float:
        """The probability that two samples have the same class; 0 for fewer than two samples.

        Unlike an entropy, its expected value does not depend on the number of samples.
        """
        squared, weight, squares = self.numbers[-3:].tolist()
        pairs = weight**2 - squares
        return (float(self.numbers[:-3].square().sum()) - squared) / pairs if pairs > 1e-6 else 0.0

    @property
    def effective_classes(self) -> float:
        """The number of equally frequent classes that would be as mixed (the exponential of the order-2 entropy)."""
        total = float(self.numbers[:-3].square().sum())
        return float(self.numbers[-2]) ** 2 / total if total else 0.0


def narrower(mix: ClassMix, usual: ClassMix, sigmas: float = 0.0) -> bool:
    """Whether a mix has less than half the usual number of further classes, by this many standard deviations.

    >>> ten, two = (ClassMix.of(torch.eye(10)[torch.arange(60) % classes]) for classes in (10, 2))
    >>> narrower(two, ten), narrower(ten, two), narrower(two, two)
    (True, False, False)
    """
    if mix.samples <= 1 or usual.same <= 0:
        return False
    bound = 1 / (1 + HALF * (1 / usual.same - 1))
    return mix.same > bound + sigmas * math.sqrt(2 * usual.same) / mix.samples
