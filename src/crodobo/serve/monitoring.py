"""Monitoring: the state, the last queries in numbers and the last receipts, as server-sent events."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Response
from fastapi.responses import StreamingResponse

from crodobo import __version__
from crodobo.serve.batcher import Batcher
from crodobo.serve.errors import Busy
from crodobo.serve.points import MAX_RECEIPTS
from crodobo.serve.service import Service

HEARTBEAT = 1.0  # longest time between two events, in seconds
PAUSE = 0.1  # shortest time between two events, in seconds
MAX_WATCHERS = 64


class Monitor:
    """Shows the service to those who watch it."""

    def __init__(self, service: Service, batcher: Batcher) -> None:
        self.service, self.batcher = service, batcher
        self.started = time.monotonic()
        self.watchers = 0
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Send all watchers an event."""
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self, after: int = -1) -> dict[str, Any]:
        """Everything that the page shows, with the queries after this number."""
        service, session, points = self.service, self.service.session, list(self.service.points)
        return {
            "state": service.state,
            "failure": service.failure,
            "name": service.settings.name,
            "method": service.settings.method,
            "version": __version__,
            "burn": service.settings.options.burn,
            "uptime": round(time.monotonic() - self.started, 1),
            "adapting": session.adapting,
            "met": session.learned,
            "last_query": session.ledger.last_query,
            "totals": service.totals,
            "predicted_only": dict(session.counts.predicted_only),
            "queue": {"requests": self.batcher.active, "limit": self.batcher.limit},
            "classes": [] if session.phase == "loading" else list(service.source.classes),
            "points": [point for point in points if point["query"] > after],
            "receipts": [
                {"id": point["receipt"], "query": point["query"], "time": point["time"], "samples": point["samples"]}
                for point in points[-MAX_RECEIPTS:][::-1]
            ],
            "kept_states": [
                {"query": moment.query, "learned": moment.learned, "time": moment.time}
                for moment in list(session.history.moments)
            ],
            "rollback": session.history.last_rollback and session.history.last_rollback._asdict(),
            "proof": session.prover.as_numbers(),
        }

    async def events(self) -> Response:
        """Stream what the page shows as server-sent events: after each query, and at least once a second.

        The first event holds the last queries, each later one only the new queries.
        """
        if self.watchers >= MAX_WATCHERS:
            raise Busy("Too many clients are watching.", retry_after=10)
        return StreamingResponse(self._stream(), media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[str]:
        sent = -1
        self.watchers += 1
        try:
            while True:
                changed, snapshot = self._changed, self.snapshot(sent)
                yield f"data: {json.dumps(snapshot)}\n\n"
                sent = snapshot["points"][-1]["query"] if snapshot["points"] else sent
                if self.service.session.stop.requested:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                await asyncio.sleep(PAUSE)
        finally:
            self.watchers -= 1
