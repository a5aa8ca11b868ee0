"""Around every request: security headers, its status is counted, no body stays unread, every error has an answer."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FAILED = "the service has failed at this request; its own log says more"
UNREAD = 2**20  # bytes of a refused request's body that are read nevertheless
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


logger = logging.getLogger("uvicorn.error")


class Around:
    """The app, and what is done to each of its answers.

    What of a body is not read would lie in the server's buffer for as long as the connection is open. A short rest is
    read and dropped; a longer one ends with the connection.
    """

    def __init__(self, app: ASGIApp, counted: Callable[[int], None]) -> None:
        self.app, self.counted = app, counted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        whole = begun = False

        async def receiving() -> Message:
            nonlocal whole
            message = await receive()
            whole = whole or message["type"] == "http.disconnect" or not message.get("more_body", False)
            return message

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                if not whole and not await drained():
                    headers["Connection"] = "close"
                self.counted(message["status"])
            await send(message)

        async def drained() -> bool:
            left = UNREAD
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    while not whole and left > 0:
                        left -= len((await receiving()).get("body", b""))
            return whole

        try:
            await self.app(scope, receiving, sending)
        except Exception:
            logger.exception("an error that nobody has foreseen")
            if begun:
                raise
            await JSONResponse({"error": FAILED}, 500)(scope, receiving, sending)
