"""Metrics for Prometheus: numbers about requests and queries, nothing about any image.

An administrator's key gets the metrics of the service, a client's key those of its own requests.
"""

from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crodobo.core.prediction import Reason
from crodobo.serve.batcher import Batcher
from crodobo.serve.keys import Caller
from crodobo.serve.service import Service

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOTALS = {
    "queries": "Queries answered.",
    "samples": "Samples answered.",
    "burned_bytes": "Bytes overwritten after their query.",
    "restores": "Times that collapsed learners were restored to their last good weights.",
    "rollbacks": "Times that an administrator rolled the learners back.",
    "skipped": "Updates skipped because a loss or a gradient was not finite.",
}
LATEST = {
    "confidence": "Mean confidence of the last query.",
    "entropy": "Mean entropy of the last query's predictions, in nats.",
    "agreement": "Share of the last query on which all learners agree.",
    "kept": "Share of the last query's pseudo-labels that were learned.",
    "estimated_accuracy": "Estimated accuracy on the last samples, without labels. Absent if unknown.",
    "estimated_accuracy_low": "Lower end of the estimate's interval. Absent if unknown.",
    "estimated_accuracy_high": "Upper end of the estimate's interval. Absent if unknown.",
    "drift": "Distance of the learners' statistics from the source's, in standard deviations.",
}


OWN_TOTALS = ("queries", "samples", "burned_bytes")


class Metrics(Collector):
    """Counts requests as they come, and reads everything else from the service when Prometheus asks."""

    def __init__(self, service: Service, batcher: Batcher) -> None:
        self._service, self._batcher = service, batcher
        self.registry = CollectorRegistry()
        self.requests = Counter("crodobo_requests", "Requests by status.", ["status"], registry=self.registry)
        text = "Seconds per request: reading the body, waiting for the query, adapting, saving the weights, total."
        self.latency = Histogram("crodobo_seconds", text, ["phase"], buckets=SECONDS, registry=self.registry)
        self.registry.register(self)

    def count(self, status: int, caller: Caller | None) -> None:
        """Count a response. The caller is unknown if the request had no valid key."""
        self.requests.labels(str(status)).inc()
        if caller and caller.role == "client":
            self._batcher.clients.of(caller).requests[status] += 1

    def text_for(self, caller: Caller) -> bytes:
        """The metrics that a caller may see, in Prometheus' format."""
        if caller.role == "admin":
            return generate_latest(self.registry)
        own = CollectorRegistry()
        own.register(OwnMetrics(self._service, self._batcher, caller))
        return generate_latest(own)

    def collect(self) -> Iterator[Metric]:
        service = self._service
        for name, text in TOTALS.items():
            yield CounterMetricFamily(f"crodobo_{name}", text, value=service.totals[name])
        text = "Queries that were predicted but not learned, by reason."
        yield predicted_only(text, service.session.counts.predicted_only)
        yield GaugeMetricFamily("crodobo_queue_requests", "Requests being processed.", value=self._batcher.places.used)
        yield from state_of(service)
        if not service.points:
            return
        last = service.points[-1]
        for name, text in LATEST.items():
            if last[name] is not None:
                yield GaugeMetricFamily(f"crodobo_{name}", text, value=last[name])
        text = "Share of the last query predicted as each class."
        mix = GaugeMetricFamily("crodobo_predicted_share", text, labels=["class"])
        for name, share in zip(service.source.classes, last["classes"], strict=True):
            mix.add_metric([name], share)
        yield mix


class OwnMetrics(Collector):
    """The metrics of one client's own requests."""

    def __init__(self, service: Service, batcher: Batcher, caller: Caller) -> None:
        self._service, self._figures = service, batcher.clients.of(caller)
        self._active = batcher.places.held(caller.id)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("crodobo_requests", "Your requests by status.", labels=["status"])
        for status, number in self._figures.requests.items():
            requests.add_metric([str(status)], number)
        yield requests
        for name in OWN_TOTALS:
            text = f"{TOTALS[name]} Yours only."
            yield CounterMetricFamily(f"crodobo_{name}", text, value=self._figures.totals[name])
        text = "Your requests of which not all images were learned, by reason."
        yield predicted_only(text, self._figures.predicted_only)
        yield GaugeMetricFamily("crodobo_queue_requests", "Your requests being processed.", value=self._active)
        yield from state_of(self._service)


def predicted_only(text: str, counts: Mapping[str, int]) -> Metric:
    """A counter with a value for each reason."""
    unlearned = CounterMetricFamily("crodobo_predicted_only", text, labels=["reason"])
    for reason in get_args(Reason):
        unlearned.add_metric([reason], counts[reason])
    return unlearned


def state_of(service: Service) -> Iterator[Metric]:
    yield GaugeMetricFamily("crodobo_ready", "Whether queries are answered.", value=service.answering)
    yield GaugeMetricFamily("crodobo_adapting", "Whether queries are learned.", value=service.session.adapting)
