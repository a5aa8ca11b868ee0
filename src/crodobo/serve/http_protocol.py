"""The HTTP protocol of a connection, with limits against clients that are slow or never stop sending.

It subclasses uvicorn's internals, so pyproject.toml has an upper bound for uvicorn.
"""

import asyncio
import functools
import re
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from crodobo.serve.shares import FairShare

HEADER_SECONDS = 15.0  # for the headers of a request; its body has the deadline
HEADER_BYTES = 2**16
MAX_CONNECTIONS = 4096
UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)  # Java's client offers HTTP/2 this way
RESERVED_FILES = 64  # that the service itself may have open


class HttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request headers do not arrive or do not end.

    Otherwise a client without a key could hold connections open forever. Connections beyond the limit of open files,
    minus those that the service needs itself, are closed at once. So are those beyond the fair share of an address.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._timer: asyncio.TimerHandle | None = None  # runs while headers are awaited
        self._header_bytes = 0  # received so far
        self._in_body = False
        self._cycles: list[RequestResponseCycle] = []  # unanswered requests of this connection
        # All connections of a server share its state.
        self._share: FairShare = vars(self.server_state).setdefault("share", FairShare(max_connections()))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        fits = self._share.fits(self._address)
        self._share.take(self._address)
        if fits:
            self._start_timer()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._share.give_back(self._address)
        for cycle in self._cycles:  # uvicorn itself notifies only the last one
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_body:
            data = self._check_headers(data)
        if self.transport.is_closing():
            return
        super().data_received(data)
        if not self._in_body and (self.cycle is None or self.cycle.response_complete):
            self._start_timer()  # the data did not begin a request, and uvicorn would wait forever for more

    def _check_headers(self, data: bytes) -> bytes:
        """Close the connection if the headers are too long. Hide offers to upgrade to another protocol."""
        headers, end, rest = data.partition(b"\r\n\r\n")
        self._header_bytes += len(headers)
        if self._header_bytes > HEADER_BYTES:
            self.transport.close()
        if b"upgrade" not in headers.lower():
            return data
        return UPGRADE.sub(b"\r\nX-Offered:", headers) + end + rest

    def _unsupported_upgrade_warning(self) -> None:
        """Close the connection after an offer that arrived in pieces: its body could be taken for a request."""
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_timer()

    def on_message_complete(self) -> None:
        self._in_body, self._header_bytes = False, 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._in_body = True
        self._stop_timer()
        super().on_headers_complete()
        if self.cycle:
            self._cycles = [cycle for cycle in self._cycles if not cycle.response_complete]
            self._cycles.append(self.cycle)

    def on_response_complete(self) -> None:
        """Forget the headers and the address of an answered request: the connection may stay open for long."""
        super().on_response_complete()
        for cycle in self._cycles:
            if cycle.response_complete:
                if self.scope is cycle.scope:  # no other request has begun
                    self.headers, self.url = [], b""
                    self.scope = {}  # type: ignore[typeddict-item]
                cycle.scope = {}  # type: ignore[typeddict-item]

    def _start_timer(self) -> None:
        self._timer = self._timer or self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


@functools.cache
def max_connections() -> int:
    """Raise the limit of open files as far as the system allows, and return how many connections that permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else min(hard, MAX_CONNECTIONS)
    if soft != resource.RLIM_INFINITY and soft < granted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (granted, hard))
    return max(1, granted - RESERVED_FILES)
