"""The middleware: an unexpected error becomes a response, which is counted and has the security headers."""

import asyncio
from typing import Any

import pytest

from crodobo.serve.middleware import FAILED, Middleware


def answer_of(app: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages of a response, and the counted statuses."""
    sent: list[dict[str, Any]] = []
    counted: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    middleware = Middleware(app, lambda status, _: counted.append(status))
    asyncio.run(middleware({"type": "http", "headers": []}, receive, send))  # type: ignore[arg-type]
    return sent, counted


def test_an_unexpected_error_becomes_a_response_without_its_text() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("sesame")

    sent, counted = answer_of(app)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert (sent[0]["status"], counted) == (500, [500])
    assert headers["x-content-type-options"] == "nosniff"
    assert FAILED in sent[1]["body"].decode()
    assert "sesame" not in str(sent)


def test_an_error_in_the_middle_of_a_response_is_not_answered_twice() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("sesame")

    with pytest.raises(RuntimeError):
        answer_of(app)
