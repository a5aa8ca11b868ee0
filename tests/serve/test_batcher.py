"""Gathering: every request gets its own rows, in order of arrival, or is told to come again."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.burn.arena import Arena
from crodobo.core.memory import Memory
from crodobo.core.prediction import Prediction
from crodobo.errors import NotHardened
from crodobo.serve.batcher import Control, Gatherer, Rows, together
from crodobo.serve.errors import Busy
from crodobo.serve.service import Answer

KINDS = (Control(), Control(adapt=False), Control(order="predict-then-adapt"))


class Echo:
    """Stands for the service: what it predicts of an image is the image's first pixel. It can be held at work."""

    def __init__(self, held: bool = False) -> None:
        self.memory = Memory()
        self.at_work, self.let_go = threading.Event(), threading.Event()
        if not held:
            self.let_go.set()
        self.queries: list[tuple[Control, list[int]]] = []
        self.error: Exception | None = None
        self.failure: str | None = None
        self.saves: list[Future[None] | None] = []  # of the queries, one after the other

    def answer(self, images: torch.Tensor, adapt: bool, order: Any) -> Answer:
        self.at_work.set()
        self.let_go.wait(30)
        if self.error:
            raise self.error
        marks = images[:, 0, 0, 0].clone()
        self.queries.append((Control(adapt, order), marks.int().tolist()))
        saved = self.saves.pop(0) if self.saves else None
        return Answer(Prediction(marks.float()[:, None]), "receipt", len(self.queries), 0.01, saved)


async def until_at_work(echo: Echo) -> None:
    await asyncio.to_thread(echo.at_work.wait, 30)


def marked(mark: int, samples: int = 1) -> torch.Tensor:
    """Images that can be told from all others."""
    return torch.full((samples, 1, 2, 2), mark, dtype=torch.uint8)


def marks(rows: Rows) -> list[int]:
    return rows.probabilities[:, 0].int().tolist()


def gathering(echo: Echo, work: Callable[[Gatherer], Awaitable[Any]], *, started: bool = True, **options: Any) -> Any:
    """Let a gatherer work, and close it."""

    async def run() -> Any:
        chosen: dict[str, Any] = {"size": 8, "max_wait": 0.002, "limit": 1000, "deadline": 10.0} | options
        gatherer = Gatherer(echo, **chosen)  # type: ignore[arg-type]
        if started:
            gatherer.start()
        try:
            return await asyncio.wait_for(work(gatherer), 30)
        finally:
            await asyncio.wait_for(gatherer.close(), 30)

    return asyncio.run(run())


# --- whose rows are whose ---


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=20),
    kinds=st.lists(st.sampled_from(KINDS), min_size=20, max_size=20),
    pauses=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_rows_go_to_their_owners_in_order_and_only_those_who_want_the_same_share_a_query(
    sizes: list[int], kinds: list[Control], pauses: list[bool]
) -> None:
    echo = Echo()

    async def work(gatherer: Gatherer) -> list[Rows]:
        tasks = []
        for mark, (size, kind, pause) in enumerate(zip(sizes, kinds, pauses, strict=False)):
            tasks.append(asyncio.create_task(gatherer.submit(marked(mark, size), kind)))
            await asyncio.sleep(0.001 if pause else 0)
        return await asyncio.gather(*tasks)

    answers = gathering(echo, work, max_wait=0.0005)
    for mark, (size, rows) in enumerate(zip(sizes, answers, strict=True)):
        assert marks(rows) == [mark] * size
        assert echo.queries[rows.answer.query - 1][0] == kinds[mark]
    met = [mark for _, query in echo.queries for mark in query]
    assert met == [mark for mark, size in enumerate(sizes) for _ in range(size)]  # in order of arrival, each once
    assert all(len(query) <= 8 for _, query in echo.queries)


def test_requests_that_arrive_together_share_a_query() -> None:
    echo = Echo()

    async def work(gatherer: Gatherer) -> None:
        await asyncio.gather(*(gatherer.submit(marked(mark, 2), Control()) for mark in range(4)))

    gathering(echo, work, max_wait=5.0)  # four times two fill the query, so nobody waits for the time to pass
    assert [query for _, query in echo.queries] == [[0, 0, 1, 1, 2, 2, 3, 3]]


def test_a_request_alone_waits_only_so_long() -> None:
    echo = Echo()

    async def work(gatherer: Gatherer) -> float:
        started = time.monotonic()
        await gatherer.submit(marked(1), Control())
        return time.monotonic() - started

    assert gathering(echo, work, max_wait=0.05) >= 0.05


def test_pixels_of_both_kinds_share_a_query_and_mean_the_same() -> None:
    whole, unit = marked(51), torch.full((2, 1, 2, 2), 0.2)
    batch = together([whole, unit], Memory())
    assert batch.dtype == torch.float32
    assert torch.allclose(batch, torch.full((3, 1, 2, 2), 0.2))
    assert int(whole[0, 0, 0, 0]) == 51  # the piece stays with its request


# --- too many, too late, gone ---


def test_when_the_house_is_full_the_next_is_told_when_to_come_again() -> None:
    async def work(gatherer: Gatherer) -> None:
        with gatherer.admitted(), gatherer.admitted():
            with pytest.raises(Busy) as caught, gatherer.admitted():
                pass
            assert (caught.value.status, gatherer.inside) == (503, 2)
            assert 1 <= (caught.value.retry_after or 0) <= 10
        with gatherer.admitted():
            assert gatherer.inside == 1

    gathering(Echo(), work, limit=2)


def test_who_waits_longer_than_the_deadline_is_told_so_and_is_not_learned_from() -> None:
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> Rows:
        first = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        gatherer.deadline = 0.05
        with pytest.raises(Busy, match=r"no answer within 0\.05 seconds"):
            await gatherer.submit(marked(2), Control())
        assert not gatherer.queue
        echo.let_go.set()
        return await first

    assert marks(gathering(echo, work)) == [1]
    assert [query for _, query in echo.queries] == [[1]]


def test_who_is_at_work_when_the_deadline_comes_is_answered() -> None:
    """Sent again, it would be learned twice."""
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> Rows:
        gatherer.deadline = 0.05
        first = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        await asyncio.sleep(0.1)
        echo.let_go.set()
        return await first

    assert marks(gathering(echo, work)) == [1]


def test_who_goes_away_leaves_the_queue_and_the_others_stay_in_order() -> None:
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> list[Rows]:
        tasks = [asyncio.create_task(gatherer.submit(marked(mark, 2), Control())) for mark in range(5)]
        await until_at_work(echo)  # four are at work, one waits
        tasks += [asyncio.create_task(gatherer.submit(marked(mark), Control())) for mark in (5, 6, 7)]
        await asyncio.sleep(0)
        assert len(gatherer.queue) == 4
        for gone in (tasks[4], tasks[6]):
            gone.cancel()
            await asyncio.wait([gone])
        assert len(gatherer.queue) == 2
        echo.let_go.set()
        return await asyncio.gather(*tasks[:4], tasks[5], tasks[7])

    answers = gathering(echo, work)
    assert [marks(rows)[0] for rows in answers] == [0, 1, 2, 3, 5, 7]
    assert [query for _, query in echo.queries] == [[0, 0, 1, 1, 2, 2, 3, 3], [5, 7]]


def test_who_goes_away_while_at_work_does_not_keep_the_others_from_their_rows() -> None:
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> Rows:
        gone = asyncio.create_task(gatherer.submit(marked(1, 3), Control()))
        stays = asyncio.create_task(gatherer.submit(marked(2, 5), Control()))
        await until_at_work(echo)
        gone.cancel()
        echo.let_go.set()
        return await stays

    assert marks(gathering(echo, work)) == [2] * 5


def test_any_number_of_clients_may_come_and_go_before_their_turn() -> None:
    echo = Echo()

    async def work(gatherer: Gatherer) -> Rows:
        for mark in range(500):
            task = asyncio.create_task(gatherer.submit(marked(mark % 200), Control()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0)
        gatherer.max_wait = 0
        return await gatherer.submit(marked(201), Control())

    assert marks(gathering(echo, work, max_wait=20.0)) == [201]
    assert len(echo.queries) == 1


def test_a_query_that_fails_is_told_to_its_requests_and_the_next_is_answered() -> None:
    echo = Echo()
    echo.error = ValueError("broken")

    async def work(gatherer: Gatherer) -> Rows:
        failed = await asyncio.gather(
            *(gatherer.submit(marked(mark), Control()) for mark in range(3)), return_exceptions=True
        )
        assert [type(each) for each in failed] == [ValueError] * 3
        echo.error = None
        return await gatherer.submit(marked(9), Control())

    assert marks(gathering(echo, work)) == [9]


def test_nobody_is_answered_before_what_was_learned_is_kept_and_the_next_query_does_not_wait_for_that() -> None:
    echo = Echo()
    saved: Future[None] = Future()
    echo.saves = [saved, None]

    async def work(gatherer: Gatherer) -> Rows:
        first = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        assert marks(await gatherer.submit(marked(2), Control())) == [2]
        assert not first.done()
        saved.set_result(None)
        return await first

    assert marks(gathering(echo, work)) == [1]


def test_where_what_was_learned_cannot_be_kept_all_are_told() -> None:
    echo = Echo()
    echo.saves = [saved := Future[None]()]
    saved.set_exception(OSError("the disk is full"))
    told: list[bool] = []

    async def work(gatherer: Gatherer) -> list[Any]:
        asked = [gatherer.submit(marked(mark), Control()) for mark in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    failed = gathering(echo, work, after=lambda: told.append(True))
    assert [type(each) for each in failed] == [OSError] * 2
    assert told == [True]


def test_what_became_of_a_query_is_seen_also_where_its_client_has_gone_away() -> None:
    echo = Echo(held=True)
    echo.error = ValueError("broken")
    told = asyncio.Event()

    async def work(gatherer: Gatherer) -> None:
        gone = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        gone.cancel()
        echo.let_go.set()
        await asyncio.wait_for(told.wait(), 10)

    gathering(echo, work, after=told.set)


def test_the_time_that_a_request_took_to_come_counts() -> None:
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> None:
        first = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        with pytest.raises(Busy, match="no answer within"):
            await gatherer.submit(marked(2), Control(), began=time.monotonic() - 10)
        echo.let_go.set()
        await first

    gathering(echo, work)
    assert [marks for _, marks in echo.queries] == [[1]]


def test_who_is_sent_away_is_told_how_long_the_queue_will_take() -> None:
    async def work(gatherer: Gatherer) -> float:
        waiting = [asyncio.create_task(gatherer.submit(marked(1, 8), Control())) for _ in range(3)]
        await asyncio.sleep(0)
        gatherer.seconds = 2.0
        with pytest.raises(Busy) as caught, gatherer.admitted():
            pass
        for each in waiting:
            each.cancel()
        return caught.value.retry_after or 0

    assert gathering(Echo(), work, started=False, limit=0) == 2.0 * (1 + 3)
    assert gathering(Echo(), work, started=False, limit=0, deadline=5.0) == 5.0


def test_closing_waits_until_all_is_kept() -> None:
    echo = Echo()
    echo.saves = [saved := Future[None]()]

    async def work(gatherer: Gatherer) -> Rows:
        asked = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        closing = asyncio.create_task(gatherer.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
        saved.set_result(None)
        await closing
        return await asked

    assert marks(gathering(echo, work)) == [1]


def test_images_for_which_no_memory_can_be_locked_have_to_come_again() -> None:
    class Little(Memory):
        def take(self, tensor: torch.Tensor) -> torch.Tensor:
            raise NotHardened("no more")

    echo = Echo()
    echo.memory = Little()
    with pytest.raises(Busy, match="no locked memory left"):
        gathering(echo, lambda gatherer: gatherer.submit(marked(1), Control()))
    assert echo.queries == []


def test_a_service_that_has_failed_learns_nothing_more() -> None:
    echo = Echo()
    echo.failure = "the ledger cannot be written to"
    with pytest.raises(Busy, match="failed"):
        gathering(echo, lambda gatherer: gatherer.submit(marked(1), Control()))
    assert echo.queries == []


# --- the end ---


def test_closing_answers_what_was_accepted_and_takes_nothing_more() -> None:
    echo = Echo()

    async def work(gatherer: Gatherer) -> list[Rows]:
        tasks = [asyncio.create_task(gatherer.submit(marked(mark, 3), Control())) for mark in range(6)]
        await asyncio.sleep(0)
        await gatherer.close()
        with pytest.raises(Busy, match="shutting down"), gatherer.admitted():
            pass
        return await asyncio.gather(*tasks)

    answers = gathering(echo, work, max_wait=60.0)  # at the end nobody waits for a query to be full
    assert [marks(rows) for rows in answers] == [[mark] * 3 for mark in range(6)]


def test_closing_without_ever_having_begun_ends_at_once() -> None:
    gathering(Echo(), lambda gatherer: asyncio.sleep(0), started=False)


def test_what_is_done_in_turn_does_not_meet_a_query_at_work() -> None:
    echo = Echo(held=True)

    async def work(gatherer: Gatherer) -> int:
        task = asyncio.create_task(gatherer.submit(marked(1), Control()))
        await until_at_work(echo)
        seen = asyncio.create_task(gatherer.in_turn(lambda: len(echo.queries)))
        await asyncio.sleep(0)
        echo.let_go.set()
        await task
        return await seen

    assert gathering(echo, work) == 1


def test_the_batch_of_a_query_is_a_copy_so_that_requests_can_burn_theirs() -> None:
    arena = Arena()
    pieces = [arena.take(marked(mark)) for mark in (1, 2)]
    batch = together(pieces, arena)
    arena.burn(pieces)
    assert batch[:, 0, 0, 0].tolist() == [1, 2]
