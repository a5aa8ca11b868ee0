"""Prediction: the result of a method for a query. It never contains inputs or features."""

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple, Self

from torch import Tensor

# Why a query was predicted but not learned. Logs and metrics accept these words only.
Reason = Literal[
    "few samples",
    "few classes",
    "may be a burst",
    "learners disagree",
    "unlike earlier queries",
    "not asked to adapt",
    "adaptation paused",
    "key may not adapt",
    "key limit reached",
]


@dataclass(frozen=True, eq=False)
class Adaptation:
    """How a method adapted to a query.

    Parameters
    ----------
    kept
        Share of pseudo-labels that were confident enough to learn; None for methods without pseudo-labels.
    skipped
        Number of learners whose update was skipped because its loss or gradient was not finite.
    bootstrap
        For each learner, the numbers of the source samples that it learned with the query.
    predicted_only
        Why the query was predicted but not learned, in a few words; None if it was learned.
    restored
        Why the last good weights were restored; None if they were not.
    """

    kept: float | None = None
    skipped: int = 0
    bootstrap: tuple[Tensor, ...] = ()
    predicted_only: Reason | None = None
    restored: str | None = None


def agreement_of(each: Tensor) -> float | None:
    """The share of samples for which all learners predict the same class; None for one learner.

    `each` has the probabilities: learners × samples × classes.
    """
    votes = each.argmax(dim=2)
    return float((votes == votes[0]).all(dim=0).float().mean()) if len(each) > 1 else None


def join_adaptations(each: list[Adaptation]) -> Adaptation:
    """How a method adapted, from how each of its learners did.

    >>> join_adaptations([Adaptation(kept=0.5), Adaptation(kept=1.0, skipped=1)])
    Adaptation(kept=0.75, skipped=1, bootstrap=(), predicted_only=None, restored=None)
    """
    shares = [one.kept for one in each if one.kept is not None]
    return Adaptation(
        kept=fmean(shares) if shares else None,
        skipped=sum(one.skipped for one in each),
        bootstrap=tuple(drawn for one in each for drawn in one.bootstrap),
    )


class Estimate(NamedTuple):
    """The accuracy on the last samples of a stream, estimated without labels. All numbers are fractions.

    >>> str(Estimate(0.87, 0.8, 0.94))
    '87 % (80–94 %)'
    """

    accuracy: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.0f} % ({100 * self.low:.0f}–{100 * self.high:.0f} %)"


@dataclass(frozen=True, eq=False)
class Prediction:
    """The prediction of one query.

    Parameters
    ----------
    probabilities
        Samples × classes, the average over the learners.
    agreement
        Share of samples for which all learners predict the same class; None with one learner.
    adaptation
        How the method adapted to the query.
    estimate
        How accurate the method seems to be on the last samples of the stream; None if that is unknown.

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
    estimate: Estimate | None = None

    def only(self, reason: Reason) -> Self:
        """The same prediction, of a query that was predicted only."""
        return replace(self, adaptation=Adaptation(predicted_only=reason))

    @property
    def labels(self) -> Tensor:
        """The most probable class of each sample."""
        return self.probabilities.argmax(dim=1)

    @property
    def confidence(self) -> Tensor:
        """The probability of the most probable class."""
        return self.probabilities.amax(dim=1)

    @property
    def numbers(self) -> dict[str, Any]:
        """Facts about the whole query that may be logged. None is about a single sample."""
        accuracy, low, high = self.estimate or (None, None, None)
        return {
            "samples": len(self.probabilities),
            "agreement": self.agreement,
            "kept": self.adaptation.kept,
            "confidence": round(float(self.confidence.mean()), 4),
            "skipped": self.adaptation.skipped,
            "predicted_only": self.adaptation.predicted_only,
            "estimated_accuracy": accuracy,
            "estimated_accuracy_low": low,
            "estimated_accuracy_high": high,
        }
