"""Monitoring: the state, the last queries in numbers and the last receipts, as server-sent events.

Administrators see all queries. A client sees figures of its own images only.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from crodobo import __version__
from crodobo.serve.batcher import Batcher
from crodobo.serve.errors import Busy
from crodobo.serve.keys import Caller
from crodobo.serve.points import MAX_RECEIPTS
from crodobo.serve.service import Service
from crodobo.serve.shares import FairShare

HEARTBEAT = 1.0  # longest time between two events, in seconds
PAUSE = 0.1  # shortest time between two events, in seconds
MAX_WATCHERS = 64


class Monitor:
    """Shows the service to those who watch it."""

    def __init__(self, service: Service, batcher: Batcher) -> None:
        self.service, self.batcher = service, batcher
        self.started = time.monotonic()
        self.watchers = FairShare(MAX_WATCHERS)
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Send all watchers an event."""
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self, caller: Caller, after: int = -1) -> dict[str, Any]:
        """Everything that the page shows a caller, with its queries after this number."""
        service, session = self.service, self.service.session
        shown = self._whole_service() if caller.role == "admin" else self._own(caller)
        points = shown["points"]
        return shown | {
            "role": caller.role,
            "state": service.state,
            "name": service.settings.name,
            "method": service.settings.method,
            "version": __version__,
            "burn": service.settings.options.burn,
            "uptime": round(time.monotonic() - self.started, 1),
            "adapting": session.adapting,
            "classes": [] if session.phase == "loading" else list(service.source.classes),
            "points": [point for point in points if point["query"] > after],
            "receipts": [
                {"id": point["receipt"], "query": point["query"], "time": point["time"], "samples": point["samples"]}
                for point in points[-MAX_RECEIPTS:][::-1]
            ],
            "proof": session.prover.as_numbers(),
        }

    def _whole_service(self) -> dict[str, Any]:
        """What only administrators see."""
        service, session = self.service, self.service.session
        return {
            "failure": service.failure,
            "met": session.learned,
            "last_query": session.ledger.last_query,
            "totals": service.totals,
            "predicted_only": dict(session.counts.predicted_only),
            "queue": {"requests": self.batcher.places.used, "limit": self.batcher.places.total},
            "points": list(service.points),
            "kept_states": [
                {"query": moment.query, "learned": moment.learned, "time": moment.time}
                for moment in list(session.history.moments)
            ],
            "rollback": session.history.last_rollback and session.history.last_rollback._asdict(),
        }

    def _own(self, caller: Caller) -> dict[str, Any]:
        """What a client sees: its own counts, and the part of the last queries that is its own."""
        figures = self.batcher.clients.of(caller)
        return {
            "totals": figures.totals,
            "predicted_only": dict(figures.predicted_only),
            "points": list(figures.points),
        }

    async def events(self, request: Request) -> Response:
        """Stream what the page shows as server-sent events: after each query, and at least once a second.

        The first event holds the last queries, each later one only the new queries. A client's key shows figures of its
        own images only, an administrator's key those of all queries.
        """
        caller: Caller = request.state.caller
        if not self.watchers.fits(caller.id, fair=caller.role == "client"):
            raise Busy("Too many clients are watching.", retry_after=10)
        return StreamingResponse(self._stream(caller), media_type="text/event-stream")

    async def _stream(self, caller: Caller) -> AsyncIterator[str]:
        sent = -1
        with self.watchers.hold(caller.id):
            while True:
                changed, snapshot = self._changed, self.snapshot(caller, sent)
                yield f"data: {json.dumps(snapshot)}\n\n"
                sent = snapshot["points"][-1]["query"] if snapshot["points"] else sent
                if self.service.session.stop.requested:
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), HEARTBEAT)
                await asyncio.sleep(PAUSE)
