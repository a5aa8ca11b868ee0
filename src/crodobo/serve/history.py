"""What the page shows of the last queries: numbers, nothing of any sample."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from crodobo.core.prediction import Prediction
from crodobo.ledger.entry import now

KEPT = 240  # queries on the page
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
        """The numbers of one prediction."""
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


class History:
    """The last queries and the last receipts."""

    def __init__(self) -> None:
        self.points: deque[Point] = deque(maxlen=KEPT)
        self.receipts: deque[dict[str, Any]] = deque(maxlen=RECEIPTS)

    def add(self, point: Point, receipt: str) -> None:
        """Add a query."""
        self.points.append(point)
        self.receipts.append({"id": receipt, "query": point.query, "time": point.time, "samples": point.samples})
