"""What a stream of files comes to, in numbers; nothing of any image."""

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction


@dataclass
class Tally:
    """What has been done since the start, in numbers; nothing of any image."""

    predicted: int = 0
    quarantined: int = 0
    deleted_late: int = 0
    waiting: int = 0
    queries: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    agreement: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    kept: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    confidence: float = 0.0  # sum over all samples
    classes: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    held: int = 0
    restored: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, prediction: Prediction, names: list[str], seconds: float) -> None:
        """Count a query."""
        self.queries += 1
        self.predicted += len(names)
        self.classes.update(names)
        self.confidence += float(prediction.confidence.sum())
        self.seconds.append(seconds)
        self.skipped += prediction.adaptation.skipped
        self.held += prediction.adaptation.held
        if prediction.agreement is not None:
            self.agreement.append(prediction.agreement)
        if prediction.adaptation.kept is not None:
            self.kept.append(prediction.adaptation.kept)

    @property
    def rate(self) -> float:
        """Files predicted in a second."""
        return self.predicted / max(1e-9, time.monotonic() - self.started)


class Watching(Observer):
    """A reporter that is also told how a stream of files is doing."""

    def tally(self, tally: Tally) -> None:
        """A query has been predicted, its files are gone; or nothing has come for a while."""
