"""Connections on which a request does not come, or does not end, are closed."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from crodobo.serve import wire

SOON = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers after the whole body has come."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """To a server that has little patience."""
    monkeypatch.setattr(wire, "HEAD_SECONDS", SOON)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, http=wire.Protocol, loop="asyncio", lifespan="off", log_config=None, ws="none")
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout=10) as made:
                yield made
        finally:
            server.should_exit = True
            thread.join()


def until_closed(connection: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            content += part
    return content


@pytest.mark.parametrize("part", [b"", b"POST / HTTP/1.1\r\nHost: here\r\n"])
def test_who_says_nothing_or_does_not_go_on_is_closed(connection: socket.socket, part: bytes) -> None:
    connection.sendall(part)
    assert until_closed(connection) == b""


def test_a_head_without_an_end_is_closed_before_it_fills_the_memory(connection: socket.socket) -> None:
    connection.sendall(b"POST / HTTP/1.1\r\n")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 10 * wire.HEAD_BYTES:
            connection.sendall(b"X-More: " + b"x" * 4000 + b"\r\n")
            sent += 4000
            time.sleep(0.001)
    assert wire.HEAD_BYTES - 8000 < sent < 5 * wire.HEAD_BYTES
    assert until_closed(connection) == b""


def test_a_body_may_take_longer_and_so_may_one_who_asks_again(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nx")
        time.sleep(1.5 * SOON)
        connection.sendall(b"y")
        assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")
        time.sleep(1.5 * SOON)  # uvicorn's own patience with those who may ask again is longer
