"""Repeated requests: an answer is kept for a while, so that a request that is sent again is not learned again.

A client marks a request with an Idempotency-Key. Only the answer and a keyed hash of the request are kept, in memory.
The key of the hash is random and never leaves the process, so nothing about an image can be read from the hash.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fastapi import Request, Response
from torch import Tensor

from crodobo.serve.errors import BadRequest

HEADER, REPLAYED = "Idempotency-Key", "Idempotent-Replayed"
VALID = re.compile(r"[!-~]{1,128}")
SECONDS = 600.0  # that an answer is kept
EVERY = 10.0  # seconds between two looks at what is too old
OWN_ANSWERS, OWN_BYTES = 8192, 8 * 2**20  # kept for one client
ALL_BYTES = 64 * 2**20
LARGE = 2**20  # bytes; a larger body is hashed in a thread
PARTS = ("content-type", "inference-header-content-length")  # headers that decide what a body means


@dataclass(eq=False)
class Known:
    """A request that was seen. It has no answer while it is processed."""

    digest: bytes
    at: float = 0.0  # when it was answered
    answer: Response | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class KnownRequests(dict[str, Known]):
    """The known requests of one client by their keys, those answered first at the beginning."""

    size = 0  # bytes of all answers

    def keep(self, key: str, answer: Response) -> None:
        known = self[key] = self.pop(key)
        known.answer, known.at = answer, time.monotonic()
        self.size += len(answer.body)

    def forget_oldest(self) -> None:
        oldest = next((key for key, known in self.items() if known.answer), None)
        if oldest is not None and (answer := self.pop(oldest).answer):
            self.size -= len(answer.body)

    def forget_old(self) -> None:
        """Forget answers whose time is over, and the oldest ones if there are too many."""
        end = time.monotonic() - SECONDS
        while self.size and (len(self) > OWN_ANSWERS or self.size > OWN_BYTES or self._oldest() < end):
            self.forget_oldest()

    def _oldest(self) -> float:
        return next(known.at for known in self.values() if known.answer)


class Repeats:
    """The answers that are kept. `instance` names this process: another one knows nothing of these requests."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        self._secret = secrets.token_bytes(32)
        self._clients: dict[str, KnownRequests] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def answer_once(self, request: Request, body: Tensor, work: Callable[[], Awaitable[Response]]) -> Response:
        """The answer to a request: from `work`, or the kept one if the request was answered before.

        If the same request is still being processed, this waits for its answer.
        """
        key = request.headers.get(HEADER)
        if key is None:
            return await work()
        if not VALID.fullmatch(key):
            raise BadRequest(f"The {HEADER} is not valid.", "Use 1 to 128 visible ASCII characters.")
        digest = await self._digest(request, body)
        while known := (own := self._clients.setdefault(request.state.caller.id, KnownRequests())).get(key):
            if not hmac.compare_digest(known.digest, digest):
                raise BadRequest(f"Another request had this {HEADER}.", "Use a new one.", status=422)
            if known.answer:
                return copy(known.answer, {REPLAYED: "true"})
            await known.ended.wait()
        own[key] = known = Known(digest)
        try:
            response = await work()
            own.keep(key, copy(response))
        finally:
            known.ended.set()
            if not known.answer:  # it failed, so nothing was learned, and it may be tried again
                own.pop(key, None)
            self._forget_old()
        return response

    async def _digest(self, request: Request, body: Tensor) -> bytes:
        described = [request.url.path, request.url.query, *(request.headers.get(name, "") for name in PARTS)]

        def digest() -> bytes:
            state = hashlib.blake2b(key=self._secret)
            for text in described:
                state.update(f"{len(text)}:{text}".encode(errors="surrogateescape"))
            state.update(body.numpy().data)
            state.update(bytes(2 * state.block_size))  # overwrites the end of the body, which the hash buffers
            return state.digest()

        return await asyncio.to_thread(digest) if len(body) > LARGE else digest()

    def _forget_old(self) -> None:
        for caller, own in list(self._clients.items()):
            own.forget_old()
            if not own:
                del self._clients[caller]
        while sum(own.size for own in self._clients.values()) > ALL_BYTES:
            max(self._clients.values(), key=lambda own: own.size).forget_oldest()
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(EVERY, self._forget_old) if self._clients else None


def copy(response: Response, headers: dict[str, str] | None = None) -> Response:
    """A response with the same content. Sending a response changes its headers, so none is sent twice."""
    kept = {name: value for name, value in response.headers.items() if name != "content-length"}
    return Response(response.body, response.status_code, kept | (headers or {}))
