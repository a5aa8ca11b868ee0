"""Metrics of a stream, updated query by query."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from crodobo.core.prediction import Prediction


class ConfusionMatrix:
    """Counts of true and predicted classes, and the accuracies that follow from them.

    Examples
    --------
    >>> matrix = ConfusionMatrix(2)
    >>> matrix.update(predicted=torch.tensor([0, 1, 1]), labels=torch.tensor([0, 0, 1]))
    >>> matrix.counts.tolist()
    [[1, 1], [0, 1]]
    >>> round(matrix.accuracy, 3), matrix.per_class, round(matrix.class_average, 3)
    (0.667, [0.5, 1.0], 0.75)
    """

    def __init__(self, classes: int) -> None:
        self.counts = torch.zeros(classes, classes, dtype=torch.int64)

    def update(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch."""
        classes = len(self.counts)
        cells = labels.long() * classes + predicted.long()
        self.counts += torch.bincount(cells, minlength=classes**2).reshape(classes, classes)

    @property
    def samples(self) -> int:
        """Samples counted so far."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Share of samples predicted correctly; 0 before the first sample."""
        return int(self.counts.diagonal().sum()) / max(1, self.samples)

    @property
    def per_class(self) -> list[float | None]:
        """Accuracy of each class; None for a class without samples."""
        pairs = zip(self.counts.diagonal().tolist(), self.counts.sum(dim=1).tolist(), strict=True)
        return [correct / total if total else None for correct, total in pairs]

    @property
    def class_average(self) -> float:
        """Mean of the per-class accuracies over the classes with samples."""
        known = [accuracy for accuracy in self.per_class if accuracy is not None]
        return sum(known) / max(1, len(known))


@dataclass(frozen=True)
class QueryRecord:
    """One query of a stream, as a row of `curve.csv`."""

    query: int
    samples: int
    correct: int
    online_accuracy: float
    kept: float | None
    agreement: float | None
    confidence: float
    skipped: int
    predicted_only: str | None  # the reason
    restored: int
    seconds: float
    estimate: float | None = None  # of the accuracy on the last samples, without labels
    estimate_low: float | None = None
    estimate_high: float | None = None


@dataclass
class StreamRecord:
    """The results of a stream: counts, a row for each query, and the predictions. It contains no sample.

    A sample of a refused query has the prediction −1 and counts in no accuracy. `refused` and `restored` give the
    reasons for refused queries and restored weights.
    """

    confusion: ConfusionMatrix
    rows: list[QueryRecord] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    restored: list[str] = field(default_factory=list)

    @property
    def queries(self) -> int:
        """The number of queries so far, including refused ones."""
        return len(self.rows) + len(self.refused)

    @property
    def online_accuracy(self) -> float:
        """Accuracy over all samples, each predicted when its query was processed."""
        return self.confusion.accuracy

    def add(self, prediction: Prediction, labels: Tensor, seconds: float) -> None:
        """Score the prediction of a query."""
        predicted, confidence = prediction.labels, prediction.confidence
        adaptation = prediction.adaptation
        estimate, low, high = prediction.estimate or (None, None, None)
        if adaptation.restored:
            self.restored.append(f"query {self.queries + 1}: {adaptation.restored}")
        self.confusion.update(predicted, labels)
        self.predicted += predicted.tolist()
        self.confidence += confidence.tolist()
        self.rows.append(
            QueryRecord(
                query=self.queries + 1,
                samples=len(labels),
                correct=int((predicted == labels).sum()),
                online_accuracy=self.online_accuracy,
                kept=adaptation.kept,
                agreement=prediction.agreement,
                confidence=float(confidence.mean()),
                skipped=adaptation.skipped,
                predicted_only=adaptation.predicted_only,
                restored=int(adaptation.restored is not None),
                seconds=seconds,
                estimate=estimate,
                estimate_low=low,
                estimate_high=high,
            )
        )

    def refuse(self, samples: int, reason: str) -> None:
        """Record a refused query."""
        self.predicted += [-1] * samples
        self.confidence += [0.0] * samples
        self.refused.append(f"query {self.queries + 1}: {reason}")

    def as_data(self) -> dict[str, Any]:
        """The record as plain data, for a checkpoint."""
        return vars(self) | {"confusion": self.confusion.counts.tolist(), "rows": [asdict(row) for row in self.rows]}

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The record from a result of `as_data`."""
        confusion = ConfusionMatrix(len(data["confusion"]))
        confusion.counts = torch.tensor(data["confusion"], dtype=torch.int64)
        rows = [QueryRecord(**row) for row in data["rows"]]
        return cls(**data | {"confusion": confusion, "rows": rows})
