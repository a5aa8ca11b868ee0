"""How tasks are given to processes, with processes that only pretend, and the line over which real ones speak."""

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

from crodobo.errors import Interrupted
from crodobo.evaluate.comparison import Entry, Monitor, Plan, Task, carry_out, schedule
from crodobo.evaluate.comparison.schedule import Running
from crodobo.evaluate.comparison.work import Trade


class PretendedProcess:
    """A process that ends when it is told to, and counts how often it was asked to stop."""

    def __init__(self, line: Connection) -> None:
        self.line = line
        self.exitcode: int | None = None
        self.asked = 0
        self.killed = False

    def end(self, *words: tuple[str, Any], status: int = 0, after: float = 0) -> None:
        """Say the last words and be gone, some seconds after them."""
        for each in words:
            self.line.send(each)
        time.sleep(after)
        self.exitcode = status
        self.line.close()

    def terminate(self) -> None:
        """As the real ones: asked once they come to an end in order, asked twice they die at once."""
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
class Log(Monitor):
    """Everything that happened, and how many ran at a time."""

    events: list[tuple[str, str]] = field(default_factory=list)
    problems: dict[str, str | None] = field(default_factory=dict)
    at_a_time: int = 0
    most: int = 0
    told: tuple[int, int] = (0, 0)
    on_start: Callable[[Task], None] = lambda task: None

    def begun(self, tasks: int, finished: int) -> None:
        self.told = tasks, finished

    def started(self, task: Task) -> None:
        self.events.append(("started", task.title))
        self.at_a_time += 1
        self.most = max(self.most, self.at_a_time)
        self.on_start(task)

    def ended(self, task: Task, problem: str | None) -> None:
        self.events.append(("ended", task.title))
        self.problems[task.title] = problem
        self.at_a_time -= 1

    @property
    def order(self) -> list[str]:
        return [title for kind, title in self.events if kind == "started"]


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    entries = tuple(Entry(name, name, name) for name in ("ent", "crodobo"))
    return Plan(folder=tmp_path, benchmark="glyphs", entries=entries, seeds=(0, 1))


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[str, PretendedProcess]:
    """The pretended processes by the task's title; they are at work until a test ends them."""
    started: dict[str, PretendedProcess] = {}

    def start(context: object, task: Task, trade: object) -> Running:
        ours, theirs = multiprocessing.Pipe()
        started[task.title] = process = PretendedProcess(theirs)
        return Running(task, process, ours)  # type: ignore[arg-type]

    monkeypatch.setattr(schedule, "_start", start)
    return started


def finish(processes: dict[str, PretendedProcess], task: Task, after: float = 0) -> None:
    """End a task well."""
    if task.kind == "warm-up":
        task.warm_start.parent.mkdir(exist_ok=True)
        task.warm_start.touch()
    processes[task.title].end(("progress", (1, 1, "")), ("done", ""), after=after)


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_all_is_done_and_never_more_at_a_time_than_allowed(
    jobs: int, plan: Plan, processes: dict[str, PretendedProcess]
) -> None:
    log = Log()
    log.on_start = lambda task: finish(processes, task)
    assert carry_out(plan, jobs, log) == {}
    assert sorted(log.order) == sorted(task.title for task in plan.tasks)
    assert log.told == (6, 0)
    assert log.most <= jobs
    assert set(log.problems.values()) == {None}
    for seed in (0, 1):
        first = log.events.index(("ended", f"warm-up, seed {seed}")) if jobs == 1 else -1
        assert all(log.events.index(("started", f"{name}, seed {seed}")) > first for name in ("ent", "crodobo"))


def test_one_at_a_time_goes_in_the_order_of_the_plan(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()
    log.on_start = lambda task: finish(processes, task)
    carry_out(plan, 1, log)
    assert log.order == [task.title for task in plan.tasks]
    assert log.events[1::2] == [("ended", title) for title in log.order], "each ends before the next one starts"


def test_a_run_waits_for_the_warm_up_of_its_seed(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            threading.Timer(0.2, lambda: finish(processes, task, after=0.1)).start()
        else:
            assert task.warm_start.exists()
            finish(processes, task)

    log.on_start = on_start
    assert carry_out(plan, 8, log) == {}
    assert log.order[:2] == ["warm-up, seed 0", "warm-up, seed 1"]


def test_what_fails_is_noted_and_the_others_go_on(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()

    def on_start(task: Task) -> None:
        if task.title == "crodobo, seed 0":
            processes[task.title].end(("failed", "there was no room"))
        elif task.title == "ent, seed 1":
            processes[task.title].end(status=-9)
        else:
            finish(processes, task)

    log.on_start = on_start
    assert carry_out(plan, 2, log) == {
        "crodobo, seed 0": "there was no room",
        "ent, seed 1": "the process ended with status -9; where it was killed, memory may have run out",
    }
    assert len(log.order) == 6
    assert log.problems["ent, seed 0"] is None


def test_without_its_warm_up_a_seed_is_given_up_and_the_others_go_on(
    plan: Plan, processes: dict[str, PretendedProcess]
) -> None:
    log = Log()

    def on_start(task: Task) -> None:
        if task.title == "warm-up, seed 0":
            processes[task.title].end(("failed", "no room"))
        else:
            finish(processes, task)

    log.on_start = on_start
    assert carry_out(plan, 2, log) == {
        "warm-up, seed 0": "no room",
        "crodobo, seed 0": "its warm-up failed: no room",
        "ent, seed 0": "its warm-up failed: no room",
    }
    assert log.problems["crodobo, seed 1"] is log.problems["ent, seed 1"] is None
    assert "ent, seed 0" not in log.order


def interrupt_after(title: str, processes: dict[str, PretendedProcess], log: Log) -> None:
    """Ctrl-C when that task has started; warm-ups end at once, runs work on."""

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            finish(processes, task)
        if task.title == title:
            os.kill(os.getpid(), signal.SIGINT)

    log.on_start = on_start


def test_ctrl_c_starts_nothing_more_and_raises(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()
    interrupt_after("crodobo, seed 0", processes, log)
    with pytest.raises(Interrupted, match=r"^stopped; the same command goes on from here$"):
        carry_out(plan, 1, log)
    assert log.order == ["warm-up, seed 0", "crodobo, seed 0"]
    assert all(process.exitcode is not None for process in processes.values())


def test_a_running_task_is_asked_to_stop_once(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()
    interrupt_after("crodobo, seed 0", processes, log)
    with pytest.raises(Interrupted):
        carry_out(plan, 1, log)
    assert processes["crodobo, seed 0"].asked == 1, "asked twice, it ends without a checkpoint"
    assert log.problems.get("crodobo, seed 0") is None, "to be stopped is not to fail"


def test_ctrl_c_when_all_that_is_left_is_running_raises_too(
    tmp_path: Path, processes: dict[str, PretendedProcess]
) -> None:
    log = Log()
    plan = Plan(folder=tmp_path, benchmark="glyphs", entries=(Entry("ent", "ent", "ent"),), seeds=(0,))
    interrupt_after("ent, seed 0", processes, log)
    with pytest.raises(Interrupted):
        carry_out(plan, 1, log)


def test_ctrl_c_after_the_last_task_loses_nothing(tmp_path: Path, processes: dict[str, PretendedProcess]) -> None:
    log = Log()
    plan = Plan(folder=tmp_path, benchmark="glyphs", entries=(Entry("ent", "ent", "ent"),), seeds=(0,))

    def on_start(task: Task) -> None:
        if task.kind != "warm-up":
            os.kill(os.getpid(), signal.SIGINT)
        finish(processes, task)

    log.on_start = on_start
    assert carry_out(plan, 1, log) == {}


def test_when_watching_fails_no_process_is_left(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    log = Log()

    def on_start(task: Task) -> None:
        if task.kind == "warm-up":
            finish(processes, task)
        elif len(processes) > 3:
            raise OSError("the terminal is gone")

    log.on_start = on_start
    with pytest.raises(OSError, match="terminal"):
        carry_out(plan, 4, log)
    assert all(process.exitcode is not None for process in processes.values())


def test_last_words_are_heard_whenever_they_come(plan: Plan) -> None:
    running = []
    for task in plan.tasks[1:3]:
        ours, theirs = multiprocessing.Pipe()
        running.append(Running(task, PretendedProcess(theirs), ours))  # type: ignore[arg-type]
    first, second = (each.process for each in running)
    first.line.send(("progress", (1, 2, "")))  # type: ignore[attr-defined]

    def progress(*told: object) -> None:
        second.end(("done", ""))  # type: ignore[attr-defined]  # while the other one is being listened to

    ended = schedule._listen(running, progress)
    ended = ended or schedule._listen(running, progress)
    assert [(each.task.name, schedule._problem(each)) for each in ended] == [(running[1].task.name, None)]


def test_finished_runs_are_told_and_their_warm_ups_not_made_again(
    plan: Plan, processes: dict[str, PretendedProcess]
) -> None:
    done = {"crodobo, seed 0", "ent, seed 0", "ent, seed 1"}
    trade = Trade({}, lambda task: {} if task.title in done else None)
    log = Log()
    log.on_start = lambda task: finish(processes, task)
    carry_out(plan, 1, log, trade)
    assert log.told == (6, 3)
    assert log.order == ["warm-up, seed 1", "crodobo, seed 1"], "nothing of seed 0 is needed"


def test_signals_are_as_they_were_when_all_is_done(plan: Plan, processes: dict[str, PretendedProcess]) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    log = Log()
    log.on_start = lambda task: finish(processes, task)
    started = time.monotonic()
    carry_out(plan, 2, log)
    assert time.monotonic() - started < 5
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
