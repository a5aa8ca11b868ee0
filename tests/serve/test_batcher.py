"""The batcher: every request gets its own rows, in order of arrival, or is told to try again."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.burn.arena import Arena
from crodobo.core.memory import Memory
from crodobo.core.prediction import Adaptation, Prediction
from crodobo.errors import NotHardened
from crodobo.serve.batcher import Batcher, Control, Rows, concatenate
from crodobo.serve.errors import Busy, TooMany
from crodobo.serve.keys import Caller, Limits
from crodobo.serve.limits import Limiter
from crodobo.session.processed import Processed

KINDS = (Control(), Control(adapt=False), Control(order="predict-then-adapt"))


class Echo:
    """A fake service. Its prediction for an image is the image's first pixel. A query can be held until `release`."""

    def __init__(self, held: bool = False) -> None:
        self.memory, self.settings = Memory(), SimpleNamespace()
        self.at_work, self.release = threading.Event(), threading.Event()
        if not held:
            self.release.set()
        self.queries: list[tuple[Control, list[int]]] = []
        self.masks: list[bool | list[bool]] = []  # what may be learned of each query
        self.owners: list[list[int]] = []  # the client of each sample
        self.error: Exception | None = None
        self.failure: str | None = None
        self.saves: list[Future[None] | None] = []  # one for each query
        self.idle, self.idle_steps, self.enough = False, 0, threading.Event()

    def answer(
        self, images: torch.Tensor, adapt: Any, order: Any, reason: Any, owners: Any, early: Any, free: Any
    ) -> Processed:
        self.at_work.set()
        self.release.wait(30)
        if self.error:
            raise self.error
        marks = images[:, 0, 0, 0].clone()
        self.queries.append((Control(adapt if isinstance(adapt, bool) else True, order), marks.int().tolist()))
        self.masks.append(adapt if isinstance(adapt, bool) else adapt.tolist())
        self.owners.append(owners.tolist())
        unlearned = Adaptation(predicted_only=reason if adapt is False else None)
        saved = self.saves.pop(0) if self.saves else None
        prediction = Prediction(marks.float()[:, None], adaptation=unlearned)
        if self.idle:
            early(Processed(prediction, "receipt", len(self.queries), 0.01))
            while free() and not self.enough.wait(0.001):
                self.idle_steps += 1
        return Processed(prediction, "receipt", len(self.queries), 0.01, saved)


async def until_at_work(echo: Echo) -> None:
    await asyncio.to_thread(echo.at_work.wait, 30)


def marked(mark: int, samples: int = 1) -> torch.Tensor:
    """Images that differ from all others."""
    return torch.full((samples, 1, 2, 2), mark, dtype=torch.uint8)


def marks(rows: Rows) -> list[int]:
    return rows.probabilities[:, 0].int().tolist()


def run_batcher(
    echo: Echo,
    work: Callable[[Batcher], Awaitable[Any]],
    *,
    started: bool = True,
    on_query: Callable[[], Any] = lambda: None,
    **options: Any,
) -> Any:
    """Do something with a batcher, and close it."""

    async def run() -> Any:
        usual: dict[str, Any] = {"query_size": 8, "max_wait": 0.002, "queue": 1000, "deadline": 10.0}
        echo.settings = SimpleNamespace(**usual | options)
        batcher = Batcher(echo, on_query)  # type: ignore[arg-type]
        if started:
            batcher.start()
        try:
            return await asyncio.wait_for(work(batcher), 30)
        finally:
            await asyncio.wait_for(batcher.close(), 30)

    return asyncio.run(run())


# --- rows and their owners ---


@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=20),
    kinds=st.lists(st.sampled_from(KINDS), min_size=20, max_size=20),
    pauses=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_each_request_gets_its_rows_and_only_equal_controls_share_a_query(
    sizes: list[int], kinds: list[Control], pauses: list[bool]
) -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> list[Rows]:
        tasks = []
        for mark, (size, kind, pause) in enumerate(zip(sizes, kinds, pauses, strict=False)):
            tasks.append(asyncio.create_task(batcher.submit(marked(mark, size), kind)))
            await asyncio.sleep(0.001 if pause else 0)
        return await asyncio.gather(*tasks)

    answers = run_batcher(echo, work, max_wait=0.0005)
    for mark, (size, rows) in enumerate(zip(sizes, answers, strict=True)):
        assert marks(rows) == [mark] * size
        assert echo.queries[rows.answer.query - 1][0] == kinds[mark]
    seen = [mark for _, query in echo.queries for mark in query]
    assert seen == [mark for mark, size in enumerate(sizes) for _ in range(size)]  # in order of arrival, each once
    assert all(len(query) <= 8 for _, query in echo.queries)


def test_requests_that_arrive_together_share_a_query() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> None:
        await asyncio.gather(*(batcher.submit(marked(mark, 2), Control()) for mark in range(4)))

    run_batcher(echo, work, max_wait=5.0)  # four times two fill the query, so nobody waits
    assert [query for _, query in echo.queries] == [[0, 0, 1, 1, 2, 2, 3, 3]]


def test_a_single_request_waits_max_wait_for_others() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> float:
        started = time.monotonic()
        await batcher.submit(marked(1), Control())
        return time.monotonic() - started

    assert run_batcher(echo, work, max_wait=0.05) >= 0.05


# --- turns ---

SHOP, WARD = Caller("shop", "client"), Caller("ward", "client")


def test_clients_take_turns_and_the_requests_of_one_keep_their_order() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> None:
        asked = [(mark, SHOP) for mark in range(5)] + [(5, WARD), (6, WARD)]
        tasks = [asyncio.create_task(batcher.submit(marked(mark, 8), Control(), None, who)) for mark, who in asked]
        await until_at_work(echo)
        echo.release.set()
        await asyncio.gather(*tasks)

    run_batcher(echo, work)
    assert [query[0] for _, query in echo.queries] == [0, 5, 1, 6, 2, 3, 4]


def test_a_client_whose_last_turn_was_earlier_is_next_even_if_another_always_waits() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> None:
        crowd = [asyncio.create_task(batcher.submit(marked(0, 8), Control(), None, SHOP)) for _ in range(50)]
        for _ in range(3):
            await batcher.submit(marked(1, 8), Control(), None, WARD)
        await asyncio.gather(*crowd)

    run_batcher(echo, work)
    order = [query[0] for _, query in echo.queries]
    assert max(place for place, mark in enumerate(order) if mark) <= 8


def test_a_query_has_requests_of_all_clients_and_one_that_does_not_fit_waits() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> None:
        asked = [(0, 5, SHOP), (1, 5, SHOP), (2, 1, WARD), (3, 1, WARD)]
        await asyncio.gather(*(batcher.submit(marked(mark, n), Control(), None, who) for mark, n, who in asked))

    run_batcher(echo, work, max_wait=0.05)
    assert [query for _, query in echo.queries] == [[0] * 5 + [2, 3], [1] * 5]


def test_a_client_may_have_half_of_the_places_and_an_administrator_all() -> None:
    async def work(batcher: Batcher) -> None:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(batcher.admit(SHOP))
            with pytest.raises(TooMany, match="This key has too many requests at once"), batcher.admit(SHOP):
                pass
            stack.enter_context(batcher.admit(WARD))
            for _ in range(2):
                stack.enter_context(batcher.admit())
            with pytest.raises(Busy, match="Too many requests at once"), batcher.admit():
                pass

    run_batcher(Echo(), work, queue=6)


def test_uint8_and_float_pixels_share_a_query() -> None:
    whole, unit = marked(51), torch.full((2, 1, 2, 2), 0.2)
    batch = concatenate([whole, unit], Memory())
    assert batch.dtype == torch.float32
    assert torch.allclose(batch, torch.full((3, 1, 2, 2), 0.2))
    assert int(whole[0, 0, 0, 0]) == 51  # the request keeps its own copy


# --- what may be learned ---


def ask_together(*callers: Caller, size: int = 2) -> tuple[Echo, list[Rows]]:
    """Requests of these callers in one query, as far as they may share one."""
    echo = Echo()

    async def work(batcher: Batcher) -> list[Rows]:
        asked = (batcher.submit(marked(mark, size), Control(), None, one) for mark, one in enumerate(callers))
        return await asyncio.gather(*asked)

    return echo, run_batcher(echo, work, max_wait=0.05)


def outcomes(rows: list[Rows]) -> list[tuple[int, str | None]]:
    return [(row.learned, row.predicted_only) for row in rows]


def test_a_key_that_may_not_adapt_shares_no_query_with_those_that_may() -> None:
    """So its images have no part in what is learned, not even in the statistics."""
    echo, rows = ask_together(Caller("shop", "client", Limits(adapt=False)), Caller("ward", "client"))
    assert echo.masks == [False, True]
    assert outcomes(rows) == [(0, "key may not adapt"), (2, None)]
    assert rows[0].answer.prediction.adaptation.predicted_only == "key may not adapt"


def test_of_a_key_with_a_share_only_so_many_samples_are_learned() -> None:
    shop, ward = Caller("shop", "client", Limits(share=0.375)), Caller("ward", "client")  # 3 of 8
    echo, rows = ask_together(shop, ward, shop)
    assert echo.masks == [[True, True, True, True, True, False]]
    assert outcomes(rows) == [(2, None), (2, None), (1, "key limit reached")]


def test_a_key_is_in_no_more_learned_queries_a_minute_than_its_rate() -> None:
    shop, ward = Caller("shop", "client", Limits(rate=1)), Caller("ward", "client")
    echo = Echo()

    async def work(batcher: Batcher) -> list[Rows]:
        asked = [(marked(number, 4), Control(), None, who) for number, who in enumerate((shop, ward, shop, ward))]
        together = await asyncio.gather(*(batcher.submit(*one) for one in asked))
        return [*together, await batcher.submit(marked(4, 8), Control(), None, shop)]

    rows = run_batcher(echo, work, max_wait=5.0)
    assert echo.masks == [True, [False] * 4 + [True] * 4, False]
    limit = (0, "key limit reached")
    assert outcomes(rows) == [(4, None), (4, None), limit, (4, None), limit]


def test_a_query_that_is_not_learned_does_not_count_for_the_rate() -> None:
    shop, limiter = Caller("shop", "client", Limits(rate=2)), Limiter(query_size=8)
    allowed = [limiter.allow([(shop, 4)], at=at)[0] for at in (0.0, 1.0, 2.0)]  # none is learned
    for at in (3.0, 30.0):
        limiter.count([shop, shop], at=at)
    assert allowed == [4, 4, 4]
    assert [limiter.allow([(shop, 4)], at=at)[0] for at in (31.0, 62.9, 63.1)] == [0, 0, 4]


# --- full, late, disconnected ---


def test_a_full_batcher_says_when_to_try_again() -> None:
    async def work(batcher: Batcher) -> None:
        with batcher.admit(), batcher.admit():
            with pytest.raises(Busy) as caught, batcher.admit():
                pass
            assert (caught.value.status, batcher.places.used) == (503, 2)
            assert 1 <= (caught.value.retry_after or 0) <= 10
        with batcher.admit():
            assert batcher.places.used == 1

    run_batcher(Echo(), work, queue=2)


def test_a_request_that_waits_beyond_the_deadline_is_refused_and_not_learned() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> Rows:
        first = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        batcher.deadline = 0.05
        with pytest.raises(Busy, match=r"no answer within 0\.05 seconds"):
            await batcher.submit(marked(2), Control())
        assert not batcher.queue
        echo.release.set()
        return await first

    assert marks(run_batcher(echo, work)) == [1]
    assert [query for _, query in echo.queries] == [[1]]


def test_a_request_whose_query_has_begun_is_answered_after_the_deadline() -> None:
    """If it were sent again, it would be learned twice."""
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> Rows:
        first = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        await asyncio.sleep(1.2)
        echo.release.set()
        return await first

    assert marks(run_batcher(echo, work, deadline=1.0)) == [1]


def test_only_a_request_whose_query_has_not_begun_is_refused_at_the_deadline() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> list[Any]:
        first = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        second = asyncio.create_task(batcher.submit(marked(2), Control()))
        await asyncio.wait([second])
        echo.release.set()
        return await asyncio.gather(first, second, return_exceptions=True)

    rows, error = run_batcher(echo, work, query_size=1, max_wait=0, queue=2, deadline=1.0)
    assert (marks(rows), error.status) == ([1], 503)


def test_a_client_that_disconnects_leaves_the_queue_in_order() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> list[Rows]:
        tasks = [asyncio.create_task(batcher.submit(marked(mark, 2), Control())) for mark in range(5)]
        await until_at_work(echo)  # four are being answered, one waits
        tasks += [asyncio.create_task(batcher.submit(marked(mark), Control())) for mark in (5, 6, 7)]
        await asyncio.sleep(0)
        assert len(batcher.queue) == 4
        for gone in (tasks[4], tasks[6]):
            gone.cancel()
            await asyncio.wait([gone])
        assert len(batcher.queue) == 2
        echo.release.set()
        return await asyncio.gather(*tasks[:4], tasks[5], tasks[7])

    answers = run_batcher(echo, work)
    assert [marks(rows)[0] for rows in answers] == [0, 1, 2, 3, 5, 7]
    assert [query for _, query in echo.queries] == [[0, 0, 1, 1, 2, 2, 3, 3], [5, 7]]


def test_a_request_whose_client_leaves_during_its_query_ends_with_its_answer() -> None:
    """The query is learned, so the answer is kept for a client that sends the request again."""
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> Rows:
        task = asyncio.create_task(batcher.submit(marked(3), Control()))
        await until_at_work(echo)
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        echo.release.set()
        return await task

    assert marks(run_batcher(echo, work)) == [3]


def test_a_client_that_disconnects_during_its_query_does_not_affect_the_others() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> Rows:
        gone = asyncio.create_task(batcher.submit(marked(1, 3), Control()))
        stays = asyncio.create_task(batcher.submit(marked(2, 5), Control()))
        await until_at_work(echo)
        gone.cancel()
        echo.release.set()
        return await stays

    assert marks(run_batcher(echo, work)) == [2] * 5


def test_many_clients_may_disconnect_before_their_turn() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> Rows:
        for mark in range(500):
            task = asyncio.create_task(batcher.submit(marked(mark % 200), Control()))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0)
        batcher.max_wait = 0
        return await batcher.submit(marked(201), Control())

    assert marks(run_batcher(echo, work, max_wait=20.0)) == [201]
    assert len(echo.queries) == 1


def test_a_failed_query_fails_its_requests_and_the_next_is_answered() -> None:
    echo = Echo()
    echo.error = ValueError("broken")

    async def work(batcher: Batcher) -> Rows:
        failed = await asyncio.gather(
            *(batcher.submit(marked(mark), Control()) for mark in range(3)), return_exceptions=True
        )
        assert [type(each) for each in failed] == [ValueError] * 3
        echo.error = None
        return await batcher.submit(marked(9), Control())

    assert marks(run_batcher(echo, work)) == [9]


def test_an_answer_waits_for_its_checkpoint_and_the_next_query_does_not() -> None:
    echo = Echo()
    saved: Future[None] = Future()
    echo.saves = [saved, None]

    async def work(batcher: Batcher) -> Rows:
        first = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        assert marks(await batcher.submit(marked(2), Control())) == [2]
        assert not first.done()
        saved.set_result(None)
        return await first

    assert marks(run_batcher(echo, work)) == [1]


def test_a_failed_checkpoint_fails_all_requests_of_the_query() -> None:
    echo = Echo()
    echo.saves = [saved := Future[None]()]
    saved.set_exception(OSError("the disk is full"))
    told: list[bool] = []

    async def work(batcher: Batcher) -> list[Any]:
        asked = [batcher.submit(marked(mark), Control()) for mark in range(2)]
        return await asyncio.gather(*asked, return_exceptions=True)

    failed = run_batcher(echo, work, on_query=lambda: told.append(True))
    assert [type(each) for each in failed] == [OSError] * 2
    assert told == [True]


def test_on_query_is_called_even_if_the_client_has_disconnected() -> None:
    echo = Echo(held=True)
    echo.error = ValueError("broken")
    told = asyncio.Event()

    async def work(batcher: Batcher) -> None:
        gone = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        gone.cancel()
        echo.release.set()
        await asyncio.wait_for(told.wait(), 10)

    run_batcher(echo, work, on_query=told.set)


def test_the_deadline_includes_the_time_to_read_the_request() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        with pytest.raises(Busy, match="no answer within"):
            await batcher.submit(marked(2), Control(), began=time.monotonic() - 10)
        echo.release.set()
        await first

    run_batcher(echo, work)
    assert [query for _, query in echo.queries] == [[1]]


def test_retry_after_is_the_expected_length_of_the_queue() -> None:
    async def work(batcher: Batcher) -> float:
        waiting = [asyncio.create_task(batcher.submit(marked(1, 8), Control())) for _ in range(3)]
        await asyncio.sleep(0)
        batcher.seconds = 2.0
        with pytest.raises(Busy) as caught, batcher.admit():
            pass
        for each in waiting:
            each.cancel()
        return caught.value.retry_after or 0

    assert run_batcher(Echo(), work, started=False, queue=0) == pytest.approx(2.0 * (1 + 3))
    assert run_batcher(Echo(), work, started=False, queue=0, deadline=5.0) == pytest.approx(5.0)


def test_closing_waits_for_the_checkpoint() -> None:
    echo = Echo()
    echo.saves = [saved := Future[None]()]

    async def work(batcher: Batcher) -> Rows:
        asked = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        closing = asyncio.create_task(batcher.close())
        await asyncio.sleep(0.02)
        assert not closing.done()
        saved.set_result(None)
        await closing
        return await asked

    assert marks(run_batcher(echo, work)) == [1]


def test_without_lockable_memory_requests_must_try_again() -> None:
    class FullMemory(Memory):
        def take(self, tensor: torch.Tensor) -> torch.Tensor:
            raise NotHardened("There is no more.")

    echo = Echo()
    echo.memory = FullMemory()
    with pytest.raises(Busy, match="no locked memory"):
        run_batcher(echo, lambda batcher: batcher.submit(marked(1), Control()))
    assert echo.queries == []


def test_a_failed_service_learns_nothing_more() -> None:
    echo = Echo()
    echo.failure = "The ledger cannot be written."
    with pytest.raises(Busy, match="failed"):
        run_batcher(echo, lambda batcher: batcher.submit(marked(1), Control()))
    assert echo.queries == []


# --- closing ---


def test_closing_answers_admitted_requests_and_admits_no_more() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> list[Rows]:
        tasks = [asyncio.create_task(batcher.submit(marked(mark, 3), Control())) for mark in range(6)]
        await asyncio.sleep(0)
        await batcher.close()
        with pytest.raises(Busy, match="shutting down"), batcher.admit():
            pass
        return await asyncio.gather(*tasks)

    answers = run_batcher(echo, work, max_wait=60.0)  # a closing batcher does not wait for a full query
    assert [marks(rows) for rows in answers] == [[mark] * 3 for mark in range(6)]


def test_a_batcher_that_never_started_closes_at_once() -> None:
    run_batcher(Echo(), lambda batcher: asyncio.sleep(0), started=False)


def test_work_between_queries_waits_for_the_current_query() -> None:
    echo = Echo(held=True)

    async def work(batcher: Batcher) -> int:
        task = asyncio.create_task(batcher.submit(marked(1), Control()))
        await until_at_work(echo)
        seen = asyncio.create_task(batcher.between_queries(lambda: len(echo.queries)))
        await asyncio.sleep(0)
        echo.release.set()
        await task
        return await seen

    assert run_batcher(echo, work) == 1


def test_the_batch_of_a_query_is_a_copy() -> None:
    arena = Arena()
    pieces = [arena.take(marked(mark)) for mark in (1, 2)]
    batch = concatenate(pieces, arena)
    arena.burn(pieces)
    assert batch[:, 0, 0, 0].tolist() == [1, 2]


# --- several clients ---


def test_a_shared_query_says_whose_each_sample_is() -> None:
    echo = Echo()
    ward, lab = Caller("ward", "client"), Caller("lab", "client")

    async def work(batcher: Batcher) -> list[Rows]:
        asked = [(1, 2, ward), (2, 3, lab), (3, 3, ward)]
        each = (batcher.submit(marked(mark, count), Control(), caller=caller) for mark, count, caller in asked)
        return await asyncio.gather(*each)

    assert all(rows.shared for rows in run_batcher(echo, work, max_wait=5.0))
    assert echo.owners == [[0, 0, 1, 1, 1, 0, 0, 0]]


def test_several_requests_of_one_client_are_one_owner() -> None:
    echo = Echo()

    async def work(batcher: Batcher) -> list[Rows]:
        return await asyncio.gather(*(batcher.submit(marked(mark, 4), Control()) for mark in (1, 2)))

    assert not any(rows.shared for rows in run_batcher(echo, work, max_wait=5.0))
    assert echo.owners == [[0] * 8]


# --- idle steps ---


def test_a_request_is_answered_before_the_idle_steps_end() -> None:
    echo = Echo()
    echo.idle = True

    async def work(batcher: Batcher) -> Rows:
        rows = await batcher.submit(marked(1), Control())
        echo.enough.set()  # only now may the steps end by themselves
        return rows

    assert marks(run_batcher(echo, work)) == [1]


def test_idle_steps_end_when_a_request_or_an_administrator_waits() -> None:
    echo = Echo()
    echo.idle = True

    async def work(batcher: Batcher) -> str:
        await batcher.submit(marked(1), Control())
        await batcher.submit(marked(2), Control())
        return await batcher.between_queries(lambda: "done")

    assert run_batcher(echo, work) == "done"
    assert [query for _, query in echo.queries] == [[1], [2]]
