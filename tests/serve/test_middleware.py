"""Around every request: an error that nobody has foreseen is an answer too, as counted and guarded as others."""

import asyncio
from typing import Any

import pytest

from crodobo.serve.middleware import FAILED, Around


def answer_of(app: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """The messages of an answer, and the statuses that were counted."""
    sent: list[dict[str, Any]] = []
    counted: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(Around(app, counted.append)({"type": "http", "headers": []}, receive, send))  # type: ignore[arg-type]
    return sent, counted


def test_an_error_becomes_an_answer_without_a_word_of_the_request() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("sesame")

    sent, counted = answer_of(app)
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    assert (sent[0]["status"], counted) == (500, [500])
    assert headers["x-content-type-options"] == "nosniff"
    assert FAILED in sent[1]["body"].decode()
    assert "sesame" not in str(sent)


def test_an_error_in_the_middle_of_an_answer_is_not_answered_twice() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("sesame")

    with pytest.raises(RuntimeError):
        answer_of(app)
