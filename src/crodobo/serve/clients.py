"""What each client has sent: its own counts and its own last queries. A client's key shows these and no others."""

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from crodobo.core.prediction import Reason
from crodobo.serve.keys import Caller
from crodobo.serve.points import MAX_POINTS, describe_own
from crodobo.session.processed import Processed

MAX_CLIENTS = 1000  # that are remembered


class Part(NamedTuple):
    """The part of a query that one request has: its probabilities, and the bytes of its images.

    `reason` says why not all of them were learned.
    """

    caller: Caller
    probabilities: Tensor
    size: int
    reason: Reason | None


class ClientFigures:
    """The figures of one client since the start of the service. They hold nothing of any other client's images."""

    def __init__(self) -> None:
        self.requests: Counter[int] = Counter()  # by status
        self.predicted_only: Counter[str] = Counter()  # queries, by reason
        self.points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)
        self.queries = self.samples = self.burned_bytes = 0

    @property
    def totals(self) -> dict[str, int]:
        return {
            "queries": self.queries,
            "samples": self.samples,
            "burned_bytes": self.burned_bytes,
            "predicted_only": self.predicted_only.total(),
        }

    def add(self, parts: list[Part], answer: Processed) -> None:
        """Count a query in which the client has these parts."""
        probabilities = torch.cat([part.probabilities for part in parts])
        self.queries += 1
        self.samples += len(probabilities)
        self.burned_bytes += sum(part.size for part in parts)
        reason = next((part.reason for part in parts if part.reason), None)
        if reason:
            self.predicted_only[reason] += 1
        self.points.append(describe_own(probabilities, answer, reason))


class Clients:
    """The figures of all clients. Those that sent nothing for the longest time are forgotten when there are too many.

    >>> clients = Clients()
    >>> clients.of(Caller("shop", "client")).requests[200] += 1
    >>> clients.of(Caller("shop", "client")).requests[200], clients.of(Caller("ward", "client")).requests[200]
    (1, 0)
    """

    def __init__(self) -> None:
        self._figures: dict[str, ClientFigures] = {}  # the client that was active last is the last

    def of(self, caller: Caller) -> ClientFigures:
        """The figures of a client."""
        figures = self._figures.pop(caller.id, None) or ClientFigures()
        if len(self._figures) >= MAX_CLIENTS:
            del self._figures[next(iter(self._figures))]
        self._figures[caller.id] = figures
        return figures

    def add(self, parts: Iterable[Part], answer: Processed) -> None:
        """Count a query, given its parts. Administrators have no figures of their own: they see those of all."""
        by_client: dict[str, list[Part]] = {}
        for part in parts:
            if part.caller.role == "client":
                by_client.setdefault(part.caller.id, []).append(part)
        for own in by_client.values():
            self.of(own[0].caller).add(own, answer)
