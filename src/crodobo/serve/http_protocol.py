"""uvicorn's side of a connection, for clients that take their time or never stop."""

import asyncio
import functools
import re
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_SECONDS = 15.0  # that the head of a request may take to come; its body has the deadline
HEAD_BYTES = 2**16
MOST_CONNECTIONS = 4096
OFFER = re.compile(rb"\r\nupgrade:", re.IGNORECASE)  # as Java's client makes, of HTTP/2
OWN_FILES = 64  # that the service has open itself, at most


class Protocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not come, or does not end.

    Without it, whoever opens connections and says nothing would have them for as long as he likes, key or no key. More
    connections than there can be files, less what the service needs itself, are closed at once.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hurry: asyncio.TimerHandle | None = None  # while a head is awaited
        self._head = 0  # bytes of it that have come
        self._in_body = False
        self._cycles: list[RequestResponseCycle] = []  # requests of this connection that are not answered yet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        for cycle in self._cycles:  # uvicorn itself tells the last one only
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            data = self._read_head(data)
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_body and not self._hurry and (self.cycle is None or self.cycle.response_complete):
            self._await_head()  # something came that is no beginning, and uvicorn waits for more of it without end

    def _read_head(self, data: bytes) -> bytes:
        """Look at the part of a head: it must not be too long, and offers of other protocols are overlooked."""
        head, end, rest = data.partition(b"\r\n\r\n")
        self._head += len(head)
        if self._head > HEAD_BYTES:
            self.transport.close()
        if b"upgrade" not in head.lower():
            return data
        return OFFER.sub(b"\r\nX-Offered:", head) + end + rest

    def _unsupported_upgrade_warning(self) -> None:
        """An offer that came in pieces: what follows could be taken for a request, so nothing may follow."""
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._hurry:
            self._await_head()

    def on_message_complete(self) -> None:
        self._in_body, self._head = False, 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._head_is_there()
        super().on_headers_complete()
        if self.cycle:
            self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
            self._cycles.append(self.cycle)

    def _await_head(self) -> None:
        self._hurry = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_is_there(self) -> None:
        if self._hurry:
            self._hurry.cancel()
            self._hurry = None


@functools.cache
def most_connections() -> int:
    """As many as the process may have files, less some for its own; it asks for all that the system grants."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = MOST_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MOST_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    return max(1, granted - OWN_FILES)
