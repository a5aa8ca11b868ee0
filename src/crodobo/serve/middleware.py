"""Middleware: adds security headers, counts statuses, drains unread bodies, and answers unexpected errors."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crodobo.serve.keys import Caller

FAILED = "The service failed to process this request. The service's log says why."
MAX_DRAIN = 2**20  # bytes that are read of a refused request's body
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}

logger = logging.getLogger("uvicorn.error")


class Middleware:
    """Wraps the app.

    The unread part of a body would stay in the server's buffer while the connection is open. A short rest is read and
    dropped; for a longer one the connection is closed.
    """

    def __init__(self, app: ASGIApp, count: Callable[[int, Caller | None], None]) -> None:
        self.app, self.count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body_read = response_started = False

        async def receive_and_note() -> Message:
            nonlocal body_read
            message = await receive()
            body_read = body_read or message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def send_with_headers(message: Message) -> None:
            nonlocal response_started
            if message["type"] == "http.response.start":
                response_started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not body_read and not await drain():
                    headers["Connection"] = "close"
                self.count(message["status"], scope.get("state", {}).get("caller"))
            await send(message)

        async def drain() -> bool:
            left = MAX_DRAIN
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while not body_read and left > 0:
                        left -= len((await receive_and_note()).get("body", b""))
            return body_read

        try:
            await self.app(scope, receive_and_note, send_with_headers)
        except Exception:
            logger.exception("Unexpected error.")
            if response_started:
                raise
            await JSONResponse({"error": FAILED}, 500)(scope, receive_and_note, send_with_headers)
