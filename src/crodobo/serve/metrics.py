"""What the service tells a Prometheus server. Numbers of queries, none of samples' content."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crodobo.serve.batcher import Gatherer
from crodobo.serve.service import Service

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOTALS = {
    "queries": "Queries answered.",
    "samples": "Samples answered.",
    "burned_bytes": "Bytes overwritten after their query.",
    "restores": "Times that collapsed learners got their last good weights back.",
    "held": "Queries that were not learned, because they held far fewer classes than usual.",
    "skipped": "Updates left out because a loss or gradient was not finite.",
}
LATEST = {
    "confidence": "Mean confidence of the last query.",
    "entropy": "Mean entropy of the last query's predictions, in nats.",
    "agreement": "Share of the last query on which all learners agree.",
    "kept": "Share of the last query's pseudo-labels that were learned.",
    "drift": "How far the learners' statistics are from the source's, in standard deviations.",
}


class Metrics(Collector):
    """Requests are counted as they come; the rest is read off the service when somebody asks."""

    def __init__(self, service: Service, gatherer: Gatherer) -> None:
        self._service, self._gatherer = service, gatherer
        self.registry = CollectorRegistry()
        self.requests = Counter("crodobo_requests", "Requests by status.", ["status"], registry=self.registry)
        self.latency = Histogram(
            "crodobo_seconds",
            "Seconds of a request: reading its body, waiting for its query, adapting, saving what was learned, in all.",
            ["phase"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        service = self._service
        for name, text in TOTALS.items():
            yield CounterMetricFamily(f"crodobo_{name}", text, value=service.totals[name])
        yield GaugeMetricFamily("crodobo_queue_requests", "Requests in the house.", value=self._gatherer.inside)
        yield GaugeMetricFamily("crodobo_ready", "Whether queries are answered.", value=service.answering)
        yield GaugeMetricFamily("crodobo_adapting", "Whether they are learned.", value=service.session.adapting)
        if not service.history.points:
            return
        last = service.history.points[-1]
        for name, text in LATEST.items():
            if (value := getattr(last, name)) is not None:
                yield GaugeMetricFamily(f"crodobo_{name}", text, value=value)
        mix = GaugeMetricFamily("crodobo_predicted_share", "Share of a class in the last query.", labels=["class"])
        for name, share in zip(service.source.classes, last.classes, strict=True):
            mix.add_metric([name], share)
        yield mix

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self.registry)
