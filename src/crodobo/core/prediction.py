"""Prediction: what a method gives back for a query. Never inputs, never features."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Adaptation:
    """How a method took a query in.

    Parameters
    ----------
    kept
        Share of the pseudo-labels that were confident enough to be learned from; None for methods without any.
    skipped
        Learners whose update was left out because its loss or gradient was not finite.
    bootstrap
        For each learner, which samples of the public source it was shown with the query.
    held
        Whether nothing was learned from the query, because it holds far fewer classes than usual.
    restored
        Why the learners' last good weights were put back, as a sentence; None where they were not.
    """

    kept: float | None = None
    skipped: int = 0
    bootstrap: tuple[Tensor, ...] = ()
    held: bool = False
    restored: str | None = None


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer to one query.

    Parameters
    ----------
    probabilities
        Samples × classes, the average over the learners.
    agreement
        Share of samples on which all learners predict the same class; None with one learner.
    adaptation
        How the query was taken in, where it was.

    Examples
    --------
    >>> import torch
    >>> prediction = Prediction(torch.tensor([[0.9, 0.1], [0.2, 0.8]]))
    >>> prediction.labels, prediction.confidence
    (tensor([0, 1]), tensor([0.9000, 0.8000]))
    """

    probabilities: Tensor
    agreement: float | None = None
    adaptation: Adaptation = Adaptation()

    @property
    def labels(self) -> Tensor:
        """The most probable class of each sample."""
        return self.probabilities.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        """The probability of that class."""
        return self.probabilities.amax(dim=1)

    @property
    def numbers(self) -> dict[str, Any]:
        """What a log may say of it: of the query as a whole, of no sample."""
        return {
            "samples": len(self.probabilities),
            "agreement": self.agreement,
            "kept": self.adaptation.kept,
            "confidence": round(float(self.confidence.mean()), 4),
            "skipped": self.adaptation.skipped,
        }
