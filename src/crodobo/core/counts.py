"""Counts: a running summary of a stream. It contains nothing about single samples."""

import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from crodobo.core.prediction import Estimate, Prediction

RECENT = 50  # queries that the means cover


def _recent() -> deque[float]:
    return deque(maxlen=RECENT)


@dataclass
class Counts:
    """Counts since the session started.

    Examples
    --------
    >>> import torch
    >>> counts = Counts()
    >>> counts.add(Prediction(torch.eye(2), agreement=1.0), ["cat", "dog"], query=1, seconds=0.5, wiped=8)
    >>> counts.queries, counts.samples, counts.classes["cat"], counts.mean("agreement")
    (1, 2, 1, 1.0)
    """

    queries: int = 0
    samples: int = 0
    refused: int = 0  # queries that the model could not use
    wiped: int = 0  # bytes
    skipped: int = 0  # updates
    predicted_only: Counter[str] = field(default_factory=Counter)  # queries that were not learned, by reason
    restored: list[str] = field(default_factory=list)  # the reason for each restored weight copy
    confidence: float = 0.0  # sum over all samples
    classes: Counter[str] = field(default_factory=Counter)
    seconds: deque[float] = field(default_factory=_recent)
    agreement: deque[float] = field(default_factory=_recent)
    kept: deque[float] = field(default_factory=_recent)
    accuracy: float | None = None  # online, if labels are known
    estimate: Estimate | None = None  # the latest; None if unknown
    started: float = field(default_factory=time.monotonic)

    def add(self, prediction: Prediction, names: Iterable[str], *, query: int, seconds: float, wiped: int) -> None:
        """Count a query that was predicted and erased."""
        adaptation = prediction.adaptation
        self.queries += 1
        self.samples += len(prediction.probabilities)
        self.wiped += wiped
        self.classes.update(names)
        self.confidence += float(prediction.confidence.sum())
        self.seconds.append(seconds)
        self.skipped += adaptation.skipped
        self.estimate = prediction.estimate
        if adaptation.predicted_only:
            self.predicted_only[adaptation.predicted_only] += 1
        if adaptation.restored:
            self.restored.append(f"Query {query}: {adaptation.restored}")
        if prediction.agreement is not None:
            self.agreement.append(prediction.agreement)
        if adaptation.kept is not None:
            self.kept.append(adaptation.kept)

    def totals(self) -> dict[str, int]:
        """What the event log says when a session ends."""
        return {"samples": self.samples}

    def mean(self, name: str, last: int = RECENT) -> float | None:
        """The mean of `seconds`, `agreement` or `kept` over the last queries; None if there are no values."""
        values: deque[float] = getattr(self, name)
        return statistics.fmean(list(values)[-last:]) if values else None

    @property
    def rate(self) -> float:
        """Samples predicted per second."""
        return self.samples / max(1e-9, time.monotonic() - self.started)
