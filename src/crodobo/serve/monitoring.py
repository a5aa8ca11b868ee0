"""What whoever watches is shown: the state, the last queries in numbers, the last receipts; now and as it changes."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from crodobo import __version__
from crodobo.serve.batcher import Gatherer
from crodobo.serve.errors import Busy
from crodobo.serve.service import Service

BEAT = 1.0  # seconds between two events when nothing happens
PAUSE = 0.1  # seconds between two events at least
MOST_WATCHERS = 64


class Watching:
    """A service as it is seen from outside."""

    def __init__(self, service: Service, gatherer: Gatherer) -> None:
        self.service, self.gatherer = service, gatherer
        self.started = time.monotonic()
        self.watchers = 0
        self._changed = asyncio.Event()

    def tell(self) -> None:
        """Wake whoever watches."""
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self, after: int = -1) -> dict[str, Any]:
        """All that the page shows; of queries, those after this one."""
        service, history, prover = self.service, self.service.history, self.service.session.prover
        return {
            "state": service.state,
            "failure": service.failure,
            "name": service.settings.name,
            "method": service.settings.method,
            "version": __version__,
            "burn": service.settings.options.burn,
            "uptime": round(time.monotonic() - self.started, 1),
            "adapting": self.service.session.adapting,
            "met": self.service.session.learned,
            "last_query": self.service.session.ledger.last_query,
            "totals": service.totals,
            "queue": {"requests": self.gatherer.inside, "limit": self.gatherer.limit},
            "classes": list(service.source.classes) if service.loaded else [],
            "points": [asdict(point) for point in list(history.points) if point.query > after],
            "receipts": list(history.receipts)[::-1],
            "proof": prover.scan.as_numbers() | {"time": prover.time} if prover.scan else None,
        }

    async def events(self) -> Response:
        """What the page shows, as server-sent events: at once when a query is answered, else every second.

        The first event has the last queries, those that follow have what is new.
        """
        if self.watchers >= MOST_WATCHERS:
            raise Busy("too many are watching", retry_after=10)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        sent = -1
        self.watchers += 1
        try:
            while True:
                changed, now = self._changed, self.snapshot(sent)
                yield f"data: {json.dumps(now)}\n\n"
                sent = now["points"][-1]["query"] if now["points"] else sent
                if self.service.session.stop.requested:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), BEAT)
                await asyncio.sleep(PAUSE)
        finally:
            self.watchers -= 1
