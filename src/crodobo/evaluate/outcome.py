"""Outcome: everything known about a finished run, and the `result.json` made from it."""

import contextlib
import platform
import statistics
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from torch import Tensor

from crodobo.burn.levels import BURNED
from crodobo.burn.scan import Scan
from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.prediction import Estimate
from crodobo.core.process import peak_memory
from crodobo.data import Benchmark
from crodobo.evaluate.settings import RunSettings

LIBRARIES = ("crodobo", "torch", "torchvision", "timm", "numpy", "pillow", "matplotlib", "mlxtend")
METRICS = {"accuracy": "accuracy over all samples", "class-average": "mean of the accuracies of the classes"}


class Exhibit(NamedTuple):
    """One query, picked by the seed, to show beside the source samples that the learners drew for it."""

    query: int
    bootstrap: list[list[int]]


@dataclass(frozen=True)
class Outcome:
    """A finished run."""

    settings: RunSettings
    benchmark: Benchmark
    record: StreamRecord  # the stream, query by query
    final: ConfusionMatrix  # the final model's score on the same samples (one-pass)
    exhibit: Exhibit | None  # the query for the qualitative figure
    streamed: Tensor  # the indices of the target samples, in the order of the stream
    warmup_seconds: float
    learning: str  # learners, steps, source views and rates, in words
    proof: Scan | None = None  # under strict burning: the search of the process memory for a test query
    ledger: str | None = None  # the id of the ledger with its receipts

    def result(self) -> dict[str, Any]:
        """The content of `result.json`. Accuracies are fractions."""
        options, record = self.settings.options, self.record
        classes = self.benchmark.source.classes
        by_class = self.benchmark.metric == "class-average"
        return {
            "method": self.settings.method,
            "benchmark": self.settings.benchmark,
            "seed": options.seed,
            "learners": options.learners,
            "queries": record.queries,
            "samples": record.confusion.samples,
            "online_accuracy": record.online_accuracy,
            "online_class_average": record.confusion.class_average,
            "metric": self.benchmark.metric,
            "one_pass": self.final.class_average if by_class else self.final.accuracy,
            "one_pass_accuracy": self.final.accuracy,
            "one_pass_class_average": self.final.class_average,
            "per_class_accuracy": dict(zip(classes, self.final.per_class, strict=True)),
            "online_per_class_accuracy": dict(zip(classes, record.confusion.per_class, strict=True)),
            "confusion_matrix": record.confusion.counts.tolist(),
            "kept": mean([row.kept for row in record.rows]),
            "agreement": mean([row.agreement for row in record.rows]),
            "estimate": last_estimate(record),
            "mean_estimate": mean([row.estimate for row in record.rows]),
            "refused_queries": record.refused,
            "skipped_updates": sum(row.skipped for row in record.rows),
            "predicted_only": Counter(row.predicted_only for row in record.rows if row.predicted_only),
            "restored_weights": record.restored,
            "seconds_per_query": statistics.median([row.seconds for row in record.rows] or [0.0]),
            "warmup_seconds": self.warmup_seconds,
            "peak_rss_mb": peak_memory(),
            "proof": self.proof.as_numbers() if self.proof else None,
            "ledger": self.ledger,
            "data_stamp": self.benchmark.stamp,
            "protocol": self.protocol(),
            "settings": self.settings.model_dump(mode="json"),
            "versions": {"python": platform.python_version()} | installed_versions(),
        }

    def protocol(self) -> dict[str, str]:
        """How the numbers were measured, in words."""
        settings, options = self.settings, self.settings.options
        weight = f", running weight {options.running_weight}" if options.norm == "mixed" else ""
        return {
            "learning": self.learning,
            "order": options.order,
            "stream": f"{settings.stream} order of seed {settings.order_seed}, queries of {settings.query_size}",
            "warmup": f"{options.warmup} steps of {options.warmup_batch} on the source, a bootstrap for each learner",
            "batch_norm": f"{options.norm} statistics at prediction{weight}",
            "online_accuracy": "over all samples, each predicted when its query was processed",
            "one_pass_accuracy": "the final model on the same samples again, without adapting",
            "one_pass": f"{METRICS[self.benchmark.metric]}, as usual for this benchmark",
            "per_class_accuracy": "one-pass",
            "seconds_per_query": "median",
            "burned": BURNED[options.burn],
        }


def last_estimate(record: StreamRecord) -> dict[str, float] | None:
    """The estimate of the accuracy at the end of a stream; None if it is unknown."""
    row = record.rows[-1] if record.rows else None
    if not row or row.estimate is None or row.estimate_low is None or row.estimate_high is None:
        return None
    return Estimate(row.estimate, row.estimate_low, row.estimate_high)._asdict()


def mean(values: list[float | None]) -> float | None:
    """Mean of the values that are not None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def installed_versions() -> dict[str, str]:
    """The versions of the libraries that are installed."""
    found = {}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
