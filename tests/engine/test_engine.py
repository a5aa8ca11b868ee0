"""Engines give the same results in the same order, in sequence and in parallel."""

import contextlib
import subprocess
import sys
import threading

import pytest
import torch

from crodobo.config import LearnerSettings
from crodobo.core.source import Source
from crodobo.engine import Engine, Parallel, Sequence, make_engine
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

PATIENCE = 20.0  # seconds until a waiting thread gives up


@pytest.fixture(params=["sequence", "parallel", "fewer-threads-than-learners"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "sequence":
        return Sequence(threads=1)
    return Parallel(workers=4 if request.param == "parallel" else 2, threads=1)


def test_results_come_in_the_order_of_the_arguments(engine: Engine) -> None:
    assert engine.map(lambda a, b: (a, b), range(8), "abcdefgh") == list(zip(range(8), "abcdefgh", strict=True))


def test_results_keep_their_order_when_the_first_finishes_last() -> None:
    last_is_done = threading.Event()

    def work(number: int) -> int:
        if number == 0:
            assert last_is_done.wait(PATIENCE)
        if number == 2:
            last_is_done.set()
        return number

    assert Parallel(workers=3, threads=1).map(work, range(3)) == [0, 1, 2]


def test_an_engine_can_be_used_again(engine: Engine) -> None:
    for shift in range(3):
        assert engine.map(lambda number, shift=shift: number + shift, [1, 2]) == [1 + shift, 2 + shift]


def test_arguments_of_different_lengths_are_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="zip"):
        engine.map(lambda a, b: a + b, [1, 2], [1])


def test_the_first_error_in_order_is_raised(engine: Engine) -> None:
    def work(number: int) -> int:
        if number in (1, 3):
            raise ArithmeticError(f"learner {number}")
        return number

    with pytest.raises(ArithmeticError, match="learner 1"):
        engine.map(work, range(4))
    assert engine.map(abs, [-1]) == [1]


def test_an_error_is_raised_when_all_learners_have_finished() -> None:
    failing, finished = threading.Event(), []

    def work(number: int) -> None:
        if number == 0:
            failing.set()
            raise ArithmeticError("learner 0")
        assert failing.wait(PATIENCE)
        weight = torch.eye(128)
        for _ in range(200):
            weight = weight @ weight
        finished.append(number)

    with pytest.raises(ArithmeticError, match="learner 0"):
        Parallel(workers=3, threads=1).map(work, range(3))
    assert sorted(finished) == [1, 2]


def test_parallel_learners_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3)
    Parallel(workers=3, threads=1).map(lambda _: meeting.wait(PATIENCE), range(3))
    assert not meeting.broken


def test_a_sequence_runs_in_the_calling_thread() -> None:
    assert Sequence(threads=1).map(lambda _: threading.get_ident(), range(2)) == [threading.get_ident()] * 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fails", [False, True])
def test_the_callers_number_of_threads_is_restored(threads: int, fails: bool) -> None:
    def work(number: int) -> int:
        if fails:
            raise ArithmeticError("learner 0")
        return number

    for engine in (Sequence(threads), Parallel(workers=2, threads=threads)):
        torch.set_num_threads(3 - threads)
        with contextlib.suppress(ArithmeticError):
            engine.map(work, range(2))
        later: list[int] = []
        thread = threading.Thread(target=lambda later=later: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *later] == [3 - threads] * 2


@pytest.mark.parametrize("threads", [1, 2])
def test_operations_use_the_given_number_of_threads(threads: int) -> None:
    for engine in (Sequence(threads), Parallel(workers=2, threads=threads)):
        torch.set_num_threads(3 - threads)
        assert engine.map(lambda _: torch.get_num_threads(), range(3)) == [threads] * 3


@pytest.mark.parametrize(("learners", "parallel"), [(1, True), (1, False), (2, False)])
def test_without_parallel_learners_no_thread_is_started(learners: int, parallel: bool) -> None:
    engine = make_engine(learners, parallel=parallel)
    assert engine.map(lambda _: threading.get_ident(), range(learners)) == [threading.get_ident()] * learners


def test_more_learners_than_cores_all_run() -> None:
    engine = make_engine(9, threads=1)
    names = engine.map(lambda number: (number, threading.get_ident()), range(9))
    assert [number for number, _ in names] == list(range(9))
    assert threading.get_ident() not in {thread for _, thread in names}


@pytest.mark.parametrize(("learners", "threads"), [(1, 8), (2, 4), (3, 2), (16, 1)])
def test_the_cores_are_shared_among_the_learners(learners: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crodobo.engine.available_cores", lambda: 8)
    assert make_engine(learners).threads == threads
    assert make_engine(learners, threads=5).threads == 5


def test_sequence_and_parallel_give_learners_with_the_same_bits(source: Source) -> None:
    settings = LearnerSettings.of(warmup=3, warmup_batch=8)

    def warmed_up(engine: Engine) -> list[Learner]:
        learners = make_learners(source, 3, seed=0, settings=settings)
        warm_up(learners, engine, source, Augment())
        return learners

    in_turn, at_once = warmed_up(Sequence(threads=1)), warmed_up(Parallel(workers=3, threads=1))
    for one, other in zip(in_turn, at_once, strict=True):
        theirs = other.state()
        assert all(torch.equal(value, theirs[name]) for name, value in one.state().items())


def test_an_interrupt_waits_for_the_learners_before_it_is_raised() -> None:
    """Ctrl-C in the main thread while learners work: nothing may be undone before they finish."""
    code = """
import os, signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background hands down "ignore"
from crodobo.engine import Parallel
done, both = [], threading.Barrier(2)
def work(number):
    both.wait()
    time.sleep(0.2)
    if number == 0:
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    done.append(number)
try:
    Parallel(workers=2, threads=1).map(work, [0, 1])
except KeyboardInterrupt:
    assert sorted(done) == [0, 1], done
else:
    raise SystemExit("not interrupted")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
