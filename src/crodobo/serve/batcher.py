"""Batcher: collects the requests of many clients into queries, and answers one query at a time."""

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
from crodobo.core.prediction import Reason
from crodobo.serve.errors import Busy, busy_if_memory_is_full
from crodobo.serve.keys import Caller
from crodobo.serve.limits import Limiter
from crodobo.serve.service import Service
from crodobo.session.processed import Processed

Result = TypeVar("Result")
LOCAL = Caller("local", "admin")  # a user of this machine


class Control(NamedTuple):
    """How a request wants its images handled. Only requests with equal controls share a query."""

    adapt: bool = True
    order: Order | None = None


@dataclass(eq=False)
class Pending:
    """The images of a request that is not answered yet.

    `reason` says why they must not be learned, if the request or its key decides that.
    """

    images: Tensor
    control: Control
    caller: Caller
    reason: Reason | None = None
    arrived: float = field(default_factory=time.monotonic)
    answered: "asyncio.Future[Rows]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True)
class Rows:
    """The part of a query's answer that belongs to one request."""

    answer: Processed
    probabilities: Tensor
    learned: int  # samples of the request
    predicted_only: Reason | None  # why the others were not learned
    waited: float  # seconds until the query began
    saved: float  # seconds until the learned weights were on disk


class Batcher:
    """Queues requests, and answers them in order of arrival.

    `on_query` is called after each query, also after one that failed.
    """

    def __init__(self, service: Service, on_query: Callable[[], None] = lambda: None) -> None:
        self.service, self.on_query, settings = service, on_query, service.settings
        self.size = settings.query_size
        self.max_wait = settings.max_wait  # seconds that a query waits for more requests
        self.limit = settings.queue  # requests at a time, including those whose body is still arriving
        self.deadline = settings.deadline  # seconds until a request whose query has not begun is refused
        self.active = 0  # requests being processed
        self.seconds = 0.1  # per query, a running mean
        self.queue: deque[Pending] = deque()
        self.limiter = Limiter(self.size)
        self._changed = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="adaptation")
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Reserve a place for one request, from before its body is read until it is answered."""
        if self._closing:
            raise Busy("The service is shutting down.", retry_after=5)
        if self.active >= self.limit:
            raise Busy("Too many requests at once.", retry_after=self.expected_wait())
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    async def submit(
        self, images: Tensor, control: Control, began: float | None = None, caller: Caller = LOCAL
    ) -> Rows:
        """Return the answer for these images. The deadline counts from `began`, by default from now."""
        reason: Reason | None = None if control.adapt else "not asked to adapt"
        if control.adapt and not caller.limits.adapt:
            reason, control = "key may not adapt", control._replace(adapt=False)
        pending = Pending(images, control, caller, reason)
        left = self.deadline - (0 if began is None else pending.arrived - began)
        self.queue.append(pending)
        self._changed.set()
        try:
            return await asyncio.wait_for(asyncio.shield(pending.answered), max(0.0, left))
        except TimeoutError:
            if pending in self.queue:
                problem = f"The request got no answer within {self.deadline:g} seconds."
                raise Busy(problem, retry_after=self.expected_wait()) from None
            return await pending.answered  # its query has begun: if it were sent again, it would be learned twice
        finally:
            with contextlib.suppress(ValueError):
                self.queue.remove(pending)  # its client left before its turn

    def expected_wait(self) -> float:
        """Estimate the seconds until the queue is empty."""
        samples = sum(len(pending.images) for pending in self.queue)
        return max(1.0, min(self.deadline, self.seconds * (1 + samples / self.size)))

    def start(self) -> None:
        """Begin to answer queries."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Answer all admitted requests, then stop."""
        self._closing = True
        self._changed.set()
        if self._task:
            await self._task
        self._worker.shutdown()

    async def between_queries(self, work: Callable[[], Result]) -> Result:
        """Do something with the learners while no query is being answered."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, work)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as deliveries:
            while batch := await self._next_batch():
                await self._answer(batch, deliveries)

    async def _next_batch(self) -> list[Pending]:
        """The requests of the next query. An empty list means the end."""
        while self.queue or not self._closing:
            left = None  # seconds until the first request has waited long enough
            if self.queue:
                left = self.queue[0].arrived + self.max_wait - time.monotonic()
                count, full = self._count_sharing()
                if full or left <= 0 or self._closing:
                    return [self.queue.popleft() for _ in range(count)]
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return []

    def _count_sharing(self) -> tuple[int, bool]:
        """How many of the first requests share a query, and whether no later one can join them."""
        total = 0
        for count, pending in enumerate(self.queue):
            total += len(pending.images)
            if count and (total > self.size or pending.control != self.queue[0].control):
                return count, True
        return len(self.queue), total >= self.size

    async def _answer(self, batch: list[Pending], deliveries: asyncio.TaskGroup) -> None:
        started = time.monotonic()
        control, reason = batch[0].control, batch[0].reason or "key limit reached"
        allowed = [0] * len(batch)  # how many samples of each request may be learned
        if control.adapt:
            allowed = self.limiter.allow([(pending.caller, len(pending.images)) for pending in batch])
        adapt = mark(allowed, [len(pending.images) for pending in batch])
        try:
            if self.service.failure:
                raise Busy("The service has failed and is about to stop.", retry_after=10)
            with busy_if_memory_is_full():
                memory = self.service.memory
                images = memory.take(concatenate([pending.images for pending in batch], memory))
            answer = await self.between_queries(lambda: self.service.answer(images, adapt, control.order, reason))
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        self.seconds += 0.2 * (answer.seconds - self.seconds)
        if answer.prediction.adaptation.predicted_only:
            allowed = [0] * len(batch)
        self.limiter.count(pending.caller for pending, learned in zip(batch, allowed, strict=True) if learned)
        deliveries.create_task(self._deliver(batch, allowed, answer, started))  # while the next query is being answered

    async def _deliver(self, batch: list[Pending], learned: list[int], answer: Processed, started: float) -> None:
        """Give each request its rows once the learned weights are on disk."""
        answered, query_reason = time.monotonic(), answer.prediction.adaptation.predicted_only
        try:
            if answer.saved:
                await asyncio.wrap_future(answer.saved)
            saved = time.monotonic() - answered
            parts = answer.prediction.probabilities.split([len(pending.images) for pending in batch])
            for pending, probabilities, count in zip(batch, parts, learned, strict=True):
                reason = pending.reason or query_reason
                if not reason and count < len(probabilities):
                    reason = "key limit reached"
                if not pending.answered.done():
                    waited = started - pending.arrived
                    pending.answered.set_result(Rows(answer, probabilities, count, reason, waited, saved))
            self.on_query()
        except BaseException as error:  # raised here, it would end all other deliveries
            self._fail(batch, error)

    def _fail(self, batch: list[Pending], error: BaseException) -> None:
        for pending in batch:
            if not pending.answered.done():
                pending.answered.set_exception(error)
                pending.answered.exception()  # marks it as retrieved, in case its client has left
        self.on_query()


def mark(learned: list[int], sizes: list[int]) -> bool | Tensor:
    """Which samples of a query may be learned, given how many of each request may: all, none, or booleans for each.

    >>> mark([2, 1], [2, 2]), mark([2, 2], [2, 2]), mark([0, 0], [2, 2])
    (tensor([ True,  True,  True, False]), True, False)
    """
    if learned == sizes or not any(learned):
        return any(learned)
    return torch.cat([torch.arange(size) < count for count, size in zip(learned, sizes, strict=True)])


def concatenate(parts: list[Tensor], memory: Memory) -> Tensor:
    """Copy the images of several requests into one batch. Each request still owns and burns its part."""
    if len({part.dtype for part in parts}) == 1:
        return torch.cat(parts)
    units = [to_unit(part) if part.dtype == torch.uint8 else part for part in parts]
    batch = torch.cat(units)
    memory.burn([unit for unit, part in zip(units, parts, strict=True) if unit is not part])
    return batch
