"""Limits: how many samples of each request in a query may be learned, by the limits of its key."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from crodobo.serve.keys import Caller

MINUTE = 60.0  # seconds


class Limiter:
    """Decides what may be learned of the requests that share a query.

    >>> from crodobo.serve.keys import Limits
    >>> shop, ward = Caller("shop", "client", Limits(share=0.25)), Caller("ward", "client")
    >>> Limiter(query_size=16).allow([(shop, 3), (ward, 8), (shop, 5)])
    [3, 8, 1]
    """

    def __init__(self, query_size: int) -> None:
        self._size = query_size
        self._learned: dict[str, deque[float]] = {}  # by key: when the last queries with its samples were learned

    def allow(self, requests: Sequence[tuple[Caller, int]], at: float | None = None) -> list[int]:
        """How many samples of each request may be learned. They are the first ones of the request."""
        at = time.monotonic() if at is None else at
        left: dict[str, int] = {}
        allowed = []
        for caller, samples in requests:
            most = left[caller.name] if caller.name in left else self._most(caller, at)
            allowed.append(min(samples, most))
            left[caller.name] = most - allowed[-1]
        return allowed

    def count(self, callers: Iterable[Caller], at: float | None = None) -> None:
        """Note that a query with samples of these callers was learned."""
        at = time.monotonic() if at is None else at
        for caller in set(callers):
            if caller.limits.rate:
                before = self._learned.get(caller.name, ())
                self._learned[caller.name] = deque([*before, at], maxlen=caller.limits.rate)

    def _most(self, caller: Caller, at: float) -> int:
        """The most samples of a caller that may be learned in one query."""
        limits = caller.limits
        if not limits.adapt:
            return 0
        if limits.rate:
            recent = [moment for moment in self._learned.get(caller.name, ()) if at - moment < MINUTE]
            if len(recent) >= limits.rate:
                return 0
        return self._size if limits.share is None else int(limits.share * self._size + 1e-9)
