"""Batcher: collects the requests of many clients into queries, and answers one query at a time.

Clients take turns, and the requests of one client are answered in order of arrival.
"""

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
from crodobo.serve.clients import Clients, Part
from crodobo.serve.errors import Busy, TooMany, busy_if_memory_is_full
from crodobo.serve.keys import Caller
from crodobo.serve.limits import Limiter
from crodobo.serve.service import Service
from crodobo.serve.shares import FairShare
from crodobo.serve.turns import Turns
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
    shared: bool  # whether the query also has images of other clients
    waited: float  # seconds until the query began
    saved: float  # seconds until the learned weights were on disk


class Batcher:
    """Queues requests, and answers them.

    `on_query` is called after each query, also after one that failed.
    """

    def __init__(self, service: Service, on_query: Callable[[], None] = lambda: None) -> None:
        self.service, self.on_query, settings = service, on_query, service.settings
        self.size = settings.query_size
        self.max_wait = settings.max_wait  # seconds that a query waits for more requests
        self.places = FairShare(settings.queue)  # for requests, including those whose body is still arriving
        self.deadline = settings.deadline  # seconds until a request whose query has not begun is refused
        self.seconds = 0.1  # per query, a running mean
        self.queue: Turns[Pending] = Turns()
        self.limiter, self.clients = Limiter(self.size), Clients()
        self._changed = asyncio.Event()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="adaptation")
        self._work = 0  # calls that the worker has begun or still has to do
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def admit(self, caller: Caller = LOCAL) -> Iterator[None]:
        """Reserve a place for one request, from before its body is read until it is answered."""
        if self._closing:
            raise Busy("The service is shutting down.", retry_after=5)
        if not self.places.fits(caller.id, fair=False):
            raise Busy("Too many requests at once.", retry_after=self.expected_wait())
        if not self.places.fits(caller.id, fair=caller.role == "client"):
            raise TooMany("This key has too many requests at once.", retry_after=self.expected_wait())
        with self.places.hold(caller.id):
            yield

    async def submit(
        self, images: Tensor, control: Control, began: float | None = None, caller: Caller = LOCAL
    ) -> Rows:
        """Return the answer for these images. The deadline counts from `began`, by default from now."""
        reason: Reason | None = None if control.adapt else "not asked to adapt"
        if control.adapt and not caller.limits.adapt:
            reason, control = "key may not adapt", control._replace(adapt=False)
        pending = Pending(images, control, caller, reason)
        left = self.deadline - (0 if began is None else pending.arrived - began)
        self.queue.add(caller.id, pending)
        self._changed.set()
        try:
            return await asyncio.wait_for(asyncio.shield(pending.answered), max(0.0, left))
        except asyncio.CancelledError:
            if pending in self.queue:
                raise  # its client left before its turn
        except TimeoutError:
            if pending in self.queue:
                problem = f"The request got no answer within {self.deadline:g} seconds."
                raise Busy(problem, retry_after=self.expected_wait()) from None
        finally:
            self.queue.remove(caller.id, pending)
        # Its query has begun. If it were sent again without an answer to repeat, it would be learned twice.
        try:
            return await asyncio.shield(pending.answered)
        except asyncio.CancelledError:  # the client left now
            return await pending.answered

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
        self._work += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        finally:
            self._work -= 1

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as deliveries:
            while batch := await self._next_batch():
                await self._answer(batch, deliveries)

    async def _next_batch(self) -> list[Pending]:
        """The requests of the next query. An empty list means the end."""
        while self.queue or not self._closing:
            left = None  # seconds until the first request has waited long enough
            if self.queue:
                left = min(pending.arrived for pending in self.queue) + self.max_wait - time.monotonic()
                batch, full = self._choose()
                if full or left <= 0 or self._closing:
                    for pending in batch:
                        self.queue.take(pending.caller.id, pending)
                    return batch
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return []

    def _choose(self) -> tuple[list[Pending], bool]:
        """The requests that share the next query, and whether no later one can join them.

        Clients take turns. One whose next request does not fit, or asks for something else, waits for the next query.
        """
        batch, total, full = list[Pending](), 0, False
        lines = deque(deque(line) for line in self.queue.lines())
        while lines:
            line = lines.popleft()
            samples = len(line[0].images)
            if batch and (total + samples > self.size or line[0].control != batch[0].control):
                full = True
                continue
            batch.append(line.popleft())
            total += samples
            if line:
                lines.append(line)
        return batch, full or total >= self.size

    async def _answer(self, batch: list[Pending], deliveries: asyncio.TaskGroup) -> None:
        started = time.monotonic()
        control, reason = batch[0].control, batch[0].reason or "key limit reached"
        allowed = [0] * len(batch)  # how many samples of each request may be learned
        if control.adapt:
            allowed = self.limiter.allow([(pending.caller, len(pending.images)) for pending in batch])
        sizes = [len(pending.images) for pending in batch]
        adapt, owners = mark(allowed, sizes), owners_of([pending.caller.id for pending in batch], sizes)
        loop, early = asyncio.get_running_loop(), list[Processed]()

        def deliver(answer: Processed) -> None:
            if answer.prediction.adaptation.predicted_only:
                allowed[:] = [0] * len(batch)
            learned = (pending.caller for pending, count in zip(batch, allowed, strict=True) if count)
            self.limiter.count(learned)
            deliveries.create_task(self._deliver(batch, allowed, answer, started))  # while the next query is learned

        def deliver_early(answer: Processed) -> None:
            early.append(answer)
            loop.call_soon_threadsafe(deliver, answer)

        try:
            if self.service.failure:
                raise Busy("The service has failed and is about to stop.", retry_after=10)
            with busy_if_memory_is_full():
                memory = self.service.memory
                images = memory.take(concatenate([pending.images for pending in batch], memory))
            answer = await self.between_queries(
                lambda: self.service.answer(images, adapt, control.order, reason, owners, deliver_early, self._is_idle)
            )
        except BaseException as error:
            self._fail(batch, error)
            if not isinstance(error, Exception):
                raise
            return
        self.seconds += 0.2 * (answer.seconds - self.seconds)
        if not early:
            deliver(answer)

    def _is_idle(self) -> bool:
        """Whether nothing waits for the current query to end."""
        return not self.queue and self._work == 1 and not self._closing

    async def _deliver(self, batch: list[Pending], learned: list[int], answer: Processed, started: float) -> None:
        """Give each request its rows once the learned weights are on disk."""
        answered, query_reason = time.monotonic(), answer.prediction.adaptation.predicted_only
        try:
            if answer.saved:
                await asyncio.wrap_future(answer.saved)
            saved = time.monotonic() - answered
            parts = answer.prediction.probabilities.split([len(pending.images) for pending in batch])
            shared = len({pending.caller.id for pending in batch}) > 1
            own: list[Part] = []
            for pending, probabilities, count in zip(batch, parts, learned, strict=True):
                reason = pending.reason or query_reason
                if not reason and count < len(probabilities):
                    reason = "key limit reached"
                rows = Rows(answer, probabilities, count, reason, shared, started - pending.arrived, saved)
                own.append(Part(pending.caller, probabilities, pending.images.nbytes, reason))
                if not pending.answered.done():
                    pending.answered.set_result(rows)
            self.clients.add(own, answer)
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


def owners_of(names: list[str], sizes: list[int]) -> Tensor:
    """The number of each sample's client, given the client of each request and its number of samples.

    >>> owners_of(["ward", "lab", "ward"], [2, 1, 1])
    tensor([0, 0, 1, 0])
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name, size in zip(names, sizes, strict=True) for _ in range(size)])


def concatenate(parts: list[Tensor], memory: Memory) -> Tensor:
    """Copy the images of several requests into one batch. Each request still owns and burns its part."""
    if len({part.dtype for part in parts}) == 1:
        return torch.cat(parts)
    units = [to_unit(part) if part.dtype == torch.uint8 else part for part in parts]
    batch = torch.cat(units)
    memory.burn([unit for unit, part in zip(units, parts, strict=True) if unit is not part])
    return batch
