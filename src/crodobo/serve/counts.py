"""What is kept of queries for whoever watches: numbers, nothing of any sample."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from crodobo.core.prediction import Prediction
from crodobo.ledger.entry import now

KEPT = 240  # queries that the page shows
RECEIPTS = 20


@dataclass(frozen=True)
class Point:
    """A query in numbers, as the page shows it."""

    query: int
    time: str
    samples: int
    seconds: float
    confidence: float
    entropy: float
    agreement: float | None
    kept: float | None
    drift: float
    classes: tuple[float, ...]
    adapted: bool
    held: bool
    restored: bool
    skipped: int

    @classmethod
    def of(cls, prediction: Prediction, *, query: int, seconds: float, drift: float, adapted: bool) -> "Point":
        """What a prediction comes to."""
        probabilities, adaptation = prediction.probabilities, prediction.adaptation
        samples = len(probabilities)
        entropy = -(probabilities * probabilities.clamp_min(1e-12).log()).sum(dim=1).mean()
        mix = torch.bincount(prediction.labels, minlength=probabilities.shape[1]) / samples
        return cls(
            query=query,
            time=now(),
            samples=samples,
            seconds=round(seconds, 4),
            confidence=round(float(prediction.confidence.mean()), 4),
            entropy=round(float(entropy), 4),
            agreement=prediction.agreement,
            kept=adaptation.kept,
            drift=round(drift, 4),
            classes=tuple(round(value, 4) for value in mix.tolist()),
            adapted=adapted,
            held=adaptation.held,
            restored=adaptation.restored is not None,
            skipped=adaptation.skipped,
        )


@dataclass
class Totals:
    """What has been done since the start."""

    queries: int = 0
    samples: int = 0
    burned_bytes: int = 0
    restores: int = 0
    skipped: int = 0
    held: int = 0


class Numbers:
    """The last queries, the last receipts, and all queries added up."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=KEPT)
        self.receipts: deque[dict[str, Any]] = deque(maxlen=RECEIPTS)
        self.totals = Totals()

    def add(self, point: Point, receipt: str, wiped: int) -> None:
        """Take a query in."""
        self.points.append(point)
        self.receipts.append({"id": receipt, "query": point.query, "time": point.time, "samples": point.samples})
        totals = self.totals
        totals.queries += 1
        totals.samples += point.samples
        totals.burned_bytes += wiped
        totals.restores += point.restored
        totals.held += point.held
        totals.skipped += point.skipped
