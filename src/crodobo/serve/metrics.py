"""What the service tells a Prometheus server. Numbers of queries, none of samples' content."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from crodobo.serve.gather import Gatherer
from crodobo.serve.service import Service

PHASES = ("read", "wait", "adapt", "total")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counted as things happen, and read off the service when somebody asks."""

    def __init__(self, service: Service, gatherer: Gatherer) -> None:
        self._service, self._gatherer = service, gatherer
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("crodobo_requests", "Requests by status.", ["status"], registry=registry)
        self.latency = Histogram(
            "crodobo_seconds", "Seconds of a request by phase.", ["phase"], buckets=SECONDS, registry=registry
        )
        totals = {
            "queries": "Queries answered.",
            "samples": "Samples answered.",
            "burned_bytes": "Bytes overwritten after their query.",
            "restores": "Times that collapsed learners got their last good weights back.",
            "held": "Queries that were not learned, because they held far fewer classes than usual.",
            "skipped": "Updates left out because a loss or gradient was not finite.",
        }
        for name, text in totals.items():
            Gauge(f"crodobo_{name}_total", text, registry=registry).set_function(partial(self._total, name))
        latest = {
            "confidence": "Mean confidence of the last query.",
            "entropy": "Mean entropy of the last query's predictions, in nats.",
            "agreement": "Share of the last query on which all learners agree.",
            "kept": "Share of the last query's pseudo-labels that were learned.",
            "drift": "How far the learners' statistics are from the source's, in standard deviations.",
        }
        for name, text in latest.items():
            Gauge(f"crodobo_{name}", text, registry=registry).set_function(partial(self._latest, name))
        self._classes = Gauge(
            "crodobo_predicted_share", "Share of a class in the last query.", ["class"], registry=registry
        )
        Gauge("crodobo_queue_requests", "Requests in the house.", registry=registry).set_function(
            lambda: gatherer.inside
        )
        Gauge("crodobo_ready", "Whether queries are answered.", registry=registry).set_function(
            lambda: service.state in ("ready", "paused")
        )

    def _total(self, name: str) -> float:
        return float(getattr(self._service.totals, name))

    def _latest(self, name: str) -> float:
        value = getattr(self._service.points[-1], name) if self._service.points else None
        return float("nan") if value is None else value

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        if self._service.points:
            for name, share in zip(self._service.source.classes, self._service.points[-1].classes, strict=True):
                self._classes.labels(name).set(share)
        return generate_latest(self.registry)
