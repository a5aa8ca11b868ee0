"""How tasks are given to processes, with fake processes."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from crodobo.core.observer import Observer
from crodobo.errors import Interrupted
from crodobo.evaluate.comparison import Entry, Plan, Task, run_tasks, scheduler
from crodobo.evaluate.comparison.scheduler import RunningTask
from crodobo.evaluate.comparison.tasks import TaskHandlers


class FakeProcess:
    """A process that ends when told to, and counts how often it was asked to stop."""

    def __init__(self, line: Connection) -> None:
        self.line = line
        self.exitcode: int | None = None
        self.asked = 0
        self.killed = False

    def end(self, *messages: tuple[str, Any], status: int = 0, after: float = 0) -> None:
        """Send the last messages, then end after some seconds."""
        for each in messages:
            self.line.send(each)
        time.sleep(after)
        self.exitcode = status
        self.line.close()

    def terminate(self) -> None:
        """Like real ones: the first request ends the process in order, the second ends it at once."""
        self.asked += 1
        if self.asked == 1:
            threading.Timer(0.7, lambda: self.exitcode is None and self.end(("stopped", ""), after=0.1)).start()
        elif self.exitcode is None:
            self.end(status=-signal.SIGTERM)

    def kill(self) -> None:
        self.killed = True
        if self.exitcode is None:
            self.end(status=-signal.SIGKILL)

    def join(self) -> None:
        return None


@dataclass
class Log(Observer):
    """Records all events and how many tasks ran at a time."""

    tasks: dict[str, Task]
    events: list[tuple[str, str]] = field(default_factory=list)
    problems: dict[str, str | None] = field(default_factory=dict)
    at_a_time: int = 0
    most: int = 0
    totals: tuple[int, int] = (0, 0)
    on_start: Callable[[Task], None] = lambda task: None

    def jobs(self, total: int, finished: int) -> None:
        self.totals = total, finished

    def job_started(self, title: str) -> None:
        self.events.append(("started", title))
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        self.on_start(self.tasks[title])

    def job_ended(self, title: str, problem: str | None) -> None:
        self.events.append(("ended", title))
        self.problems[title] = problem
        self.at_a_time -= 1

    @property
    def order(self) -> list[str]:
        return [title for kind, title in self.events if kind == "started"]


def make_log(plan: Plan) -> Log:
    return Log({task.title: task for task in plan.tasks})


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    entries = tuple(Entry(name, name, name) for name in ("ent", "crodobo"))
    return Plan(folder=tmp_path, benchmark="glyphs", entries=entries, seeds=(0, 1))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeProcess]:
    """The fake processes by task title. They run until a test ends them."""
    started: dict[str, FakeProcess] = {}

    def start(context: object, task: Task, handlers: object) -> RunningTask:
        ours, theirs = multiprocessing.Pipe()
        started[task.title] = process = FakeProcess(theirs)
        return RunningTask(task, process, ours)  # type: ignore[arg-type]

    monkeypatch.setattr(scheduler, "_start", start)
    return started


def finish(processes: dict[str, FakeProcess], task: Task, after: float = 0) -> None:
    """End a task successfully."""
    if task.kind == "warm-up":
        task.warm_start.parent.mkdir(exist_ok=True)
        task.warm_start.touch()
    processes[task.title].end(("progress", (1, 1, "")), ("done", ""), after=after)


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_all_tasks_run_and_never_more_than_allowed_at_a_time(
    jobs: int, plan: Plan, processes: dict[str, FakeProcess]
) -> None:
    log = make_log(plan)
    log.on_start = lambda task: finish(processes, task)
    assert run_tasks(plan.tasks, jobs, log) == {}
    assert sorted(log.order) == sorted(task.title for task in plan.tasks)
    assert log.totals == (6, 0)
    assert log.most <= jobs
    assert set(log.problems.values()) == {None}
    for seed in (0, 1):
        first = log.events.index(("ended", f"warm-up, seed {seed}")) if jobs == 1 else -1
        assert all(log.events.index(("started", f"{name}, seed {seed}")) > first for name in ("ent", "crodobo"))


def test_with_one_job_tasks_run_in_the_order_of_the_plan(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)
    log.on_start = lambda task: finish(processes, task)
    run_tasks(plan.tasks, 1, log)
    assert log.order == [task.title for task in plan.tasks]
    assert log.events[1::2] == [("ended", title) for title in log.order], "each ends before the next one starts"


def test_a_run_waits_for_the_warm_up_of_its_seed(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            threading.Timer(0.2, lambda: finish(processes, task, after=0.1)).start()
        else:
            assert task.warm_start.exists()
            finish(processes, task)

    log.on_start = on_start
    assert run_tasks(plan.tasks, 8, log) == {}
    assert log.order[:2] == ["warm-up, seed 0", "warm-up, seed 1"]


def test_failures_are_reported_and_the_other_tasks_go_on(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)

    def on_start(task: Task) -> None:
        if task.title == "crodobo, seed 0":
            processes[task.title].end(("failed", "there was no room"))
        elif task.title == "ent, seed 1":
            processes[task.title].end(status=-9)
        else:
            finish(processes, task)

    log.on_start = on_start
    assert run_tasks(plan.tasks, 2, log) == {
        "crodobo, seed 0": "there was no room",
        "ent, seed 1": "The process ended with status -9. If it was killed, memory may have run out.",
    }
    assert len(log.order) == 6
    assert log.problems["ent, seed 0"] is None


def test_a_failed_warm_up_fails_its_seed_and_the_other_seeds_go_on(
    plan: Plan, processes: dict[str, FakeProcess]
) -> None:
    log = make_log(plan)

    def on_start(task: Task) -> None:
        if task.title == "warm-up, seed 0":
            processes[task.title].end(("failed", "no room"))
        else:
            finish(processes, task)

    log.on_start = on_start
    assert run_tasks(plan.tasks, 2, log) == {
        "warm-up, seed 0": "no room",
        "crodobo, seed 0": "Its warm-up failed: no room",
        "ent, seed 0": "Its warm-up failed: no room",
    }
    assert log.problems["crodobo, seed 1"] is log.problems["ent, seed 1"] is None
    assert "ent, seed 0" not in log.order


def interrupt_after(title: str, processes: dict[str, FakeProcess], log: Log) -> None:
    """Press Ctrl-C when that task starts. Warm-ups end at once, runs continue."""

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            finish(processes, task)
        if task.title == title:
            os.kill(os.getpid(), signal.SIGINT)

    log.on_start = on_start


def test_after_ctrl_c_no_task_starts_and_interrupted_is_raised(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)
    interrupt_after("crodobo, seed 0", processes, log)
    with pytest.raises(Interrupted, match=r"^Stopped\. The same command continues from here\.$"):
        run_tasks(plan.tasks, 1, log)
    assert log.order == ["warm-up, seed 0", "crodobo, seed 0"]
    assert all(process.exitcode is not None for process in processes.values())


def test_a_running_task_is_asked_to_stop_once(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)
    interrupt_after("crodobo, seed 0", processes, log)
    with pytest.raises(Interrupted):
        run_tasks(plan.tasks, 1, log)
    assert processes["crodobo, seed 0"].asked == 1, "asked twice, it would end without a checkpoint"
    assert log.problems.get("crodobo, seed 0") is None, "a stopped task did not fail"


def test_ctrl_c_during_the_last_task_raises_too(tmp_path: Path, processes: dict[str, FakeProcess]) -> None:
    plan = Plan(folder=tmp_path, benchmark="glyphs", entries=(Entry("ent", "ent", "ent"),), seeds=(0,))
    log = make_log(plan)
    interrupt_after("ent, seed 0", processes, log)
    with pytest.raises(Interrupted):
        run_tasks(plan.tasks, 1, log)


def test_ctrl_c_after_the_last_task_loses_nothing(tmp_path: Path, processes: dict[str, FakeProcess]) -> None:
    plan = Plan(folder=tmp_path, benchmark="glyphs", entries=(Entry("ent", "ent", "ent"),), seeds=(0,))
    log = make_log(plan)

    def on_start(task: Task) -> None:
        if task.kind != "warm-up":
            os.kill(os.getpid(), signal.SIGINT)
        finish(processes, task)

    log.on_start = on_start
    assert run_tasks(plan.tasks, 1, log) == {}


def test_when_the_observer_fails_no_process_is_left(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    log = make_log(plan)

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            finish(processes, task)
        elif len(processes) > 3:
            raise OSError("the terminal is gone")

    log.on_start = on_start
    with pytest.raises(OSError, match="terminal"):
        run_tasks(plan.tasks, 4, log)
    assert all(process.exitcode is not None for process in processes.values())


def test_last_messages_are_read_whenever_they_come(plan: Plan) -> None:
    running = []
    for task in plan.tasks[1:3]:
        ours, theirs = multiprocessing.Pipe()
        running.append(RunningTask(task, FakeProcess(theirs), ours))  # type: ignore[arg-type]
    first, second = (each.process for each in running)
    first.line.send(("progress", (1, 2, "")))  # type: ignore[attr-defined]

    def progress(*content: object) -> None:
        second.end(("done", ""))  # type: ignore[attr-defined]  # while messages of the other one are read

    ended = scheduler._receive(running, progress)
    ended = ended or scheduler._receive(running, progress)
    assert [(each.task.name, scheduler._problem(each)) for each in ended] == [(running[1].task.name, None)]


def test_finished_runs_are_counted_and_their_warm_ups_not_repeated(
    plan: Plan, processes: dict[str, FakeProcess]
) -> None:
    done = {"crodobo, seed 0", "ent, seed 0", "ent, seed 1"}
    handlers = TaskHandlers({}, lambda task: {} if task.title in done else None)
    log = make_log(plan)
    log.on_start = lambda task: finish(processes, task)
    run_tasks(plan.tasks, 1, log, handlers)
    assert log.totals == (6, 3)
    assert log.order == ["warm-up, seed 1", "crodobo, seed 1"], "nothing of seed 0 is needed"


def test_signal_handlers_are_restored_at_the_end(plan: Plan, processes: dict[str, FakeProcess]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    log = make_log(plan)
    log.on_start = lambda task: finish(processes, task)
    started = time.monotonic()
    run_tasks(plan.tasks, 2, log)
    assert time.monotonic() - started < 5
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
