"""Requests of many clients become queries: gathered up to a size or a time, answered one query after the other."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from crodobo.config import Order
from crodobo.core.memory import Memory
from crodobo.core.pixels import to_unit
from crodobo.serve.errors import Busy, room_in_memory
from crodobo.serve.service import Service
from crodobo.session.processed import Processed

Result = TypeVar("Result")


class Control(NamedTuple):
    """How images are to be met; only requests that want the same share a query."""

    adapt: bool = True
    order: Order | None = None


@dataclass(eq=False)
class Piece:
    """One request's images on their way through the house."""

    images: Tensor
    control: Control
    arrived: float = field(default_factory=time.monotonic)
    answered: "asyncio.Future[Rows]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True)
class Rows:
    """A request's part of the answer to its query."""

    answer: Processed
    start: int
    stop: int
    waited: float  # seconds until its query began
    saved: float = 0.0  # seconds until what was learned was on disk

    @property
    def probabilities(self) -> Tensor:
        return self.answer.prediction.probabilities[self.start : self.stop]


class Gatherer:
    """Takes requests, one query at a time.

    Parameters
    ----------
    service
        What answers a query.
    size
        Samples of a query.
    max_wait
        Seconds that a query waits to be filled.
    limit
        Requests that may be in the house, on their way in among them.
    deadline
        Seconds after which a request that still waits for its query is told to come again.
    after
        Called after each query, whatever became of it.
    """

    def __init__(
        self,
        service: Service,
        *,
        size: int,
        max_wait: float,
        limit: int,
        deadline: float,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self.service, self.after = service, after
        self.size, self.max_wait, self.limit, self.deadline = size, max_wait, limit, deadline
        self.inside = 0
        self.seconds = 0.1  # of a query, as they have been lately
        self.queue: deque[Piece] = deque()
        self._changed = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="adaptation")
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._deliveries: set[asyncio.Task[None]] = set()

    # For clients

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Room for one request, from before its body is read until it is answered."""
        if self._closing:
            raise Busy("the service is shutting down", retry_after=5)
        if self.inside >= self.limit:
            raise Busy("there are too many requests at once", retry_after=self.expected_wait())
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def submit(self, images: Tensor, control: Control, began: float | None = None) -> Rows:
        """Have images answered; the deadline counts from when their request began, by default from now."""
        piece = Piece(images, control)
        left = self.deadline - (0 if began is None else piece.arrived - began)
        self.queue.append(piece)
        self._changed.set()
        try:
            return await asyncio.wait_for(asyncio.shield(piece.answered), max(0.0, left))
        except TimeoutError:
            if piece in self.queue:
                raise Busy(f"there was no answer within {self.deadline:g} seconds", self.expected_wait()) from None
            return await piece.answered  # its query is at work: sent again, it would be learned twice
        finally:
            with contextlib.suppress(ValueError):
                self.queue.remove(piece)  # it gave up before its turn

    def expected_wait(self) -> float:
        """Seconds until the queue is likely to be worked off."""
        samples = sum(len(piece.images) for piece in self.queue)
        return max(1.0, min(self.deadline, self.seconds * (1 + samples / self.size)))

    # The one query at a time

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Processed what has been accepted, then stop."""
        self._closing = True
        self._changed.set()
        if self._task:
            await self._task
        if self._deliveries:
            await asyncio.wait(self._deliveries)
        self._worker.shutdown()

    async def in_turn(self, work: Callable[[], Result]) -> Result:
        """Have something done to the learners between two queries."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def _run(self) -> None:
        while batch := await self._gather():
            await self._answer(batch)

    async def _gather(self) -> list[Piece]:
        """The next query's requests; none when the end has come."""
        while True:
            if not self.queue:
                if self._closing:
                    return []
                await self._wait(None)
                continue
            left = self.queue[0].arrived + self.max_wait - time.monotonic()
            if self._closing or left <= 0 or self._full():
                return self._take()
            await self._wait(left)

    def _full(self) -> bool:
        """Whether the first requests fill a query, or one stands behind them that cannot share it."""
        total, control = 0, self.queue[0].control
        for piece in self.queue:
            if piece.control != control:
                return True
            total += len(piece.images)
            if total >= self.size:
                return True
        return False

    def _take(self) -> list[Piece]:
        batch: list[Piece] = []
        total = 0
        while self.queue and (not batch or self.queue[0].control == batch[0].control):
            if batch and total + len(self.queue[0].images) > self.size:
                break
            batch.append(self.queue.popleft())
            total += len(batch[-1].images)
        return batch

    async def _wait(self, seconds: float | None) -> None:
        """Until something changes, or for so long."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    async def _answer(self, batch: list[Piece]) -> None:
        control = batch[0].control
        started = time.monotonic()
        try:
            if self.service.failure:
                raise Busy("the service has failed and is about to end", retry_after=10)
            with room_in_memory():
                images = self.service.memory.take(together([piece.images for piece in batch], self.service.memory))
            answer = await asyncio.get_running_loop().run_in_executor(
                self._worker, self.service.answer, images, control.adapt, control.order
            )
        except BaseException as error:
            self._tell_all(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        self.seconds += 0.2 * (answer.seconds - self.seconds)
        delivery = asyncio.create_task(self._deliver(batch, answer, started))  # while the next query is at work
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)

    async def _deliver(self, batch: list[Piece], answer: Processed, started: float) -> None:
        """Give all their rows when what was learned from them is on disk."""
        learned = time.monotonic()
        try:
            if answer.saved:
                await asyncio.wrap_future(answer.saved)
        except BaseException as error:
            self._tell_all(batch, error)
            return
        saved = time.monotonic() - learned
        start = 0
        for piece in batch:
            stop = start + len(piece.images)
            if not piece.answered.done():
                piece.answered.set_result(Rows(answer, start, stop, started - piece.arrived, saved))
            start = stop
        self.after()

    def _tell_all(self, batch: list[Piece], error: BaseException) -> None:
        """That their query has failed."""
        for piece in batch:
            if not piece.answered.done():
                piece.answered.set_exception(error)
                piece.answered.exception()  # taken note of, if nobody waits for it any more
        self.after()


def together(pieces: list[Tensor], memory: Memory) -> Tensor:
    """The images of several requests as one batch; the pieces stay with their requests, which burn them."""
    if len({piece.dtype for piece in pieces}) > 1:
        units = [to_unit(piece) if piece.dtype == torch.uint8 else piece for piece in pieces]
        batch = torch.cat(units)
        memory.burn([unit for unit, piece in zip(units, pieces, strict=True) if unit is not piece])
        return batch
    return torch.cat(pieces)
