"""Agreement: how far the learners agree beyond chance, over the last samples."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.core.prediction import agreement_of
from crodobo.guard.class_mix import ClassMix, narrower

RECENT = 64  # samples that count
LONG = 640  # samples that tell which classes are usual
SURE = 3.0  # standard deviations from which a difference is not chance
NOT_FINITE = "their weights were no longer finite"


class Agreement:
    """Counts on how many samples the learners agree, and how mixed their predictions are.

    >>> agreement = Agreement(torch.tensor([0.5, 0.5]))
    >>> agreement.add([torch.eye(2), torch.eye(2)])
    >>> agreement.kappa
    1.0
    """

    def __init__(self, prior: Tensor, recent: int = RECENT) -> None:
        self.recent = recent
        self.mix = ClassMix(len(prior), recent)
        self.votes = ClassMix(len(prior), recent)  # the mix of the most probable classes: unsure learners seem mixed
        self.agreed = torch.zeros(2, dtype=torch.float64)  # samples on which they agree, and all samples
        self.prior = prior.double()
        self.usual = self.prior * RECENT  # samples of each class over a longer time; at first, the source's

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        return {"mix": self.mix.numbers, "votes": self.votes.numbers, "agreed": self.agreed, "usual": self.usual}

    def add(self, predictions: list[Tensor]) -> None:
        """Count samples, given each learner's probabilities. The learners agree if all predict the same class."""
        each = torch.stack(predictions)
        self.count(each.mean(dim=0), agreement_of(each))

    def count(self, probabilities: Tensor, agreement: float | None) -> None:
        """Count samples, given their prediction and the share on which the learners agree."""
        count = len(probabilities)
        self.mix.add(probabilities)
        self.votes.add(F.one_hot(probabilities.argmax(dim=1), probabilities.shape[1]).to(probabilities.dtype))
        self.usual *= max(0.0, min(1.0, (LONG - count) / float(self.usual.sum())))
        self.usual += torch.bincount(probabilities.argmax(dim=1), minlength=len(self.usual))
        if agreement is not None:
            self.agreed *= max(0.0, min(1.0, (self.recent - count) / max(1.0, float(self.agreed[1]))))
            self.agreed += torch.tensor([agreement * count, count])

    @property
    def kappa(self) -> float:
        """1 if the learners always agree, 0 if only as often as chance has it. 1 with a single learner.

        Chance is what the classes predicted over a longer time make of it: learners that always see the same class
        agree without knowing anything, and those that meet a burst of one class may well know it.
        """
        if self.agreed[1] == 0:
            return 1.0
        rate, chance = float(self.agreed[0] / self.agreed[1]), float((self.usual / self.usual.sum()).square().sum())
        return (rate - chance) / (1 - chance) if chance < 1 else 0.0

    def clear(self) -> None:
        """Start again."""
        self.agreed.zero_()
        self.usual.copy_(self.prior * RECENT)
        self.mix.clear()
        self.votes.clear()


def worse(mine: Agreement, reference: Agreement) -> str | None:
    """What the learners have lost compared with the reference, on the same samples; None if nothing is certain.

    >>> good, collapsed, apart = (Agreement(torch.full((4,), 0.25)) for _ in range(3))
    >>> good.add([torch.eye(4).repeat(16, 1)] * 2)
    >>> collapsed.add([torch.eye(4)[[0] * 64]] * 2)
    >>> apart.add([torch.eye(4).repeat(16, 1), torch.eye(4)[torch.arange(64) // 16]])
    >>> worse(good, good), worse(collapsed, good)
    (None, 'they saw 1.0 classes, the reference 4.0')
    >>> worse(apart, good)
    'they agreed on 0 % beyond chance, the reference on 100 %'
    """
    if not mine.mix.numbers.isfinite().all():
        return NOT_FINITE
    if mine.mix.samples < RECENT / 2:
        return None
    for own, other in ((mine.mix, reference.mix), (mine.votes, reference.votes)):
        if narrower(own, other, SURE):
            return f"they saw {own.effective_classes:.1f} classes, the reference {other.effective_classes:.1f}"
    counted = float(mine.agreed[1])
    if counted and reference.kappa - mine.kappa > SURE * math.sqrt(0.5 / counted):
        percent = [f"{max(0.0, each.kappa):.0%}".replace("%", " %") for each in (mine, reference)]
        return f"they agreed on {percent[0]} beyond chance, the reference on {percent[1]}"
    return None
