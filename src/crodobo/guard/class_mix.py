"""ClassMix: how evenly samples spread over the classes, told from their predictions."""

import math
from typing import Self

import torch
from torch import Tensor

HALF = 0.5  # a mix is narrow if it has fewer than half of the further classes that are usual


class ClassMix:
    """The predictions of the last samples, as sums; older ones fade.

    Parameters
    ----------
    classes
        How many there are.
    horizon
        Samples that count; as more come, those before count less.

    Examples
    --------
    >>> mix = ClassMix.of(torch.eye(4)[[0, 0, 1, 1, 2, 2, 3, 3]])
    >>> round(mix.same, 3), mix.effective_classes
    (0.143, 4.0)
    """

    def __init__(self, classes: int, horizon: int) -> None:
        self.horizon = horizon
        # The sum of the predictions, of their squared lengths, of their weights, and of the weights' squares.
        self.numbers = torch.zeros(classes + 3, dtype=torch.float64)

    @classmethod
    def of(cls, probabilities: Tensor) -> Self:
        """The mix of these samples."""
        mix = cls(probabilities.shape[1], horizon=len(probabilities))
        mix.add(probabilities)
        return mix

    def add(self, probabilities: Tensor) -> None:
        """Count samples; those before fade as far as they are more than the horizon has room for."""
        count = len(probabilities)
        before = float(self.numbers[-2])
        if before + count > self.horizon:
            fade = max(0, self.horizon - count) / before if before else 0.0
            self.numbers[:-3] *= fade
            self.numbers[-3:] *= torch.tensor([fade**2, fade, fade**2], dtype=torch.float64)
        sums = torch.cat([probabilities.sum(dim=0), probabilities.square().sum()[None]])
        self.numbers += torch.cat([sums.double(), torch.tensor([count, count], dtype=torch.float64)])

    def clear(self) -> None:
        """Begin anew."""
        self.numbers.zero_()

    @property
    def samples(self) -> float:
        """How many samples tell as much as those that came, which do not all count the same."""
        weight, squares = self.numbers[-2:].tolist()
        return weight**2 / squares if squares else 0.0

    @property
    def same(self) -> float:
        """The chance that two samples are taken for the same class; 0 before there are two.

        Its mean does not depend on how many samples there are, unlike that of an entropy of their classes.
        """
        squared, weight, squares = self.numbers[-3:].tolist()
        pairs = weight**2 - squares
        return (float(self.numbers[:-3].square().sum()) - squared) / pairs if pairs > 1e-6 else 0.0

    @property
    def effective_classes(self) -> float:
        """Equally frequent classes that would be as mixed: the exponential of the entropy, of order two."""
        total = float(self.numbers[:-3].square().sum())
        return float(self.numbers[-2]) ** 2 / total if total else 0.0


def narrower(mix: ClassMix, usual: ClassMix, sigmas: float = 0.0) -> bool:
    """Whether a mix has fewer than half of the further classes that are usual, by so many standard deviations.

    >>> ten, two = (ClassMix.of(torch.eye(10)[torch.arange(60) % classes]) for classes in (10, 2))
    >>> narrower(two, ten), narrower(ten, two), narrower(two, two)
    (True, False, False)
    """
    if mix.samples <= 1 or usual.same <= 0:
        return False
    bound = 1 / (1 + HALF * (1 / usual.same - 1))
    return mix.same > bound + sigmas * math.sqrt(2 * usual.same) / mix.samples
