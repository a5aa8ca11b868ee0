"""uvicorn's side of a connection, for clients that take their time or never stop."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 15.0  # that the head of a request may take to come; its body has the deadline
HEAD_BYTES = 2**16


class Protocol(HttpToolsProtocol):
    """Closes a connection on which the head of a request does not come, or does not end.

    Without it, whoever opens connections and says nothing would have them for as long as he likes, key or no key.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._hurry: asyncio.TimerHandle | None = None  # while a head is awaited
        self._head = 0  # bytes that have come since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._hurry:
            self._head += len(data)
        super().data_received(data)
        if self._hurry and self._head > HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._hurry:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head, self._hurry = 0, self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_is_there(self) -> None:
        if self._hurry:
            self._hurry.cancel()
            self._hurry = None
