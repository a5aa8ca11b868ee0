"""Connections whose requests do not arrive or do not end are closed."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from crodobo.serve import http_protocol

SOON = 0.3


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers after the whole body has arrived."""
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


@contextlib.contextmanager
def serving(app: Any) -> Iterator[tuple[str, int]]:
    """Run a server for an app, and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(
                app, http=http_protocol.HttpProtocol, loop="asyncio", lifespan="off", log_config=None, ws="none"
            )
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A connection to a server with a short timeout for headers."""
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", SOON)
    with serving(app) as address, socket.create_connection(address, timeout=10) as made:
        yield made


def until_closed(connection: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            content += part
    return content


@pytest.mark.parametrize("part", [b"", b"POST / HTTP/1.1\r\nHost: here\r\n"])
def test_a_client_that_sends_nothing_or_stops_is_disconnected(connection: socket.socket, part: bytes) -> None:
    connection.sendall(part)
    assert until_closed(connection) == b""


def test_endless_headers_are_cut_off_before_they_fill_the_memory(connection: socket.socket) -> None:
    connection.sendall(b"POST / HTTP/1.1\r\n")
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 10 * http_protocol.HEADER_BYTES:
            connection.sendall(b"X-More: " + b"x" * 4000 + b"\r\n")
            sent += 4000
            time.sleep(0.001)
    assert http_protocol.HEADER_BYTES - 8000 < sent < 5 * http_protocol.HEADER_BYTES
    assert until_closed(connection) == b""


def test_a_body_and_the_next_request_may_take_longer(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nx")
        time.sleep(1.5 * SOON)
        connection.sendall(b"y")
        assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")
        time.sleep(1.5 * SOON)  # uvicorn keeps idle connections longer


@pytest.mark.parametrize("part", [b"\r\n", b"GET / HT"])
def test_an_unfinished_second_request_is_disconnected(connection: socket.socket, part: bytes) -> None:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 204 ")
    connection.sendall(part)
    until_closed(connection)


def test_all_pipelined_requests_learn_that_their_client_disconnected() -> None:
    begun, gone = threading.Semaphore(0), threading.Semaphore(0)

    async def waiting(scope: Any, receive: Any, send: Any) -> None:
        begun.release()
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.release()

    with serving(waiting) as address:
        with socket.create_connection(address, timeout=10) as made:
            made.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" * 2)
            assert begun.acquire(timeout=10)
        assert gone.acquire(timeout=10)


def test_connections_beyond_the_share_of_an_address_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "max_connections", lambda: 4)
    with serving(app) as address, contextlib.ExitStack() as stack:

        def answers(own_address: str) -> bool:
            made = stack.enter_context(socket.create_connection(address, 10, (own_address, 0)))
            with contextlib.suppress(ConnectionError):
                made.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                return made.recv(65536).startswith(b"HTTP/1.1 204 ")
            return False

        assert [answers("127.0.0.1") for _ in range(4)] == [True, True, False, False]
        assert [answers("127.0.0.2") for _ in range(2)] == [True, False]  # there is always room for another address


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


def test_an_offer_to_upgrade_is_ignored_and_the_body_is_read() -> None:
    """Java's client and curl --http2 make such offers."""
    bodies: list[bytes] = []

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    with serving(reading) as address, socket.create_connection(address, timeout=10) as made:
        for _ in range(2):
            made.sendall(b"POST / HTTP/1.1\r\nHost: here\r\n" + UPGRADE + b"Content-Length: 6\r\n\r\nupg")
            made.sendall(b"ade")
            assert made.recv(65536).startswith(b"HTTP/1.1 204 ")
    assert bodies == [b"upgade"] * 2


def test_an_offer_to_upgrade_in_pieces_closes_the_connection() -> None:
    paths: list[str] = []

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])
        await app(scope, receive, send)

    with serving(noting) as address, socket.create_connection(address, timeout=10) as made:
        head = b"POST /first HTTP/1.1\r\nHost: here\r\n" + UPGRADE + b"Content-Length: 40\r\n\r\n"
        made.sendall(head[: head.index(b"rade: h2c")])
        time.sleep(0.1)
        made.sendall(head[head.index(b"rade: h2c") :])
        time.sleep(0.1)
        with contextlib.suppress(ConnectionError):
            made.sendall(b"GET /second HTTP/1.1\r\nHost: here\r\n\r\n")
        until_closed(made)
    assert "/second" not in paths
