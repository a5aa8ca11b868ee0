"""Carrying a plan out: tasks in processes, so many at a time."""

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any, Protocol

from crodobo.errors import Interrupted
from crodobo.evaluate.comparison.plan import Task
from crodobo.evaluate.comparison.work import COMPARING, Trade, work
from crodobo.session.stop import StopSignal


class Monitor:
    """Told how a comparison is doing. This one keeps silent."""

    def begun(self, tasks: int, finished: int) -> None:
        """So many tasks in all, so many of them carried out before."""

    def started(self, task: Task) -> None:
        """A task has begun."""

    def progress(self, task: Task, done: int, total: int, text: str) -> None:
        """How far a task is."""

    def ended(self, task: Task, problem: str | None) -> None:
        """A task has ended, well or with a problem."""


class Tasks(Protocol):
    """A plan: what is to be done, in an order in which it can be."""

    @property
    def tasks(self) -> list[Task]: ...


@dataclass
class Running:
    """A task and the process that is at it."""

    task: Task
    process: ForkServerProcess
    line: Connection
    outcome: tuple[str, Any] | None = None


def carry_out(plan: Tasks, jobs: int, monitor: Monitor, trade: Trade = COMPARING) -> dict[str, str]:
    """Do all that is not done yet; what went wrong, by the task's title.

    Finished runs are kept and skipped, unfinished ones go on from their checkpoints. A task that fails is noted and the
    others go on. Ctrl-C lets the running ones write a checkpoint and raises `Interrupted`.
    """
    waiting = [task for task in plan.tasks if trade.finished(task) is None]
    monitor.begun(len(plan.tasks), len(plan.tasks) - len(waiting))
    needed = {task.seed for task in waiting if task.kind != "warm-up"}
    waiting = [task for task in waiting if task.kind != "warm-up" or task.seed in needed]
    problems: dict[str, str] = {}
    asked = stopped = False
    running: list[Running] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crodobo.evaluate.comparison.work"])
    with StopSignal() as stop:
        try:
            while waiting or running:
                while len(running) < jobs and not stop.requested and (task := _next_ready(waiting, running, problems)):
                    waiting.remove(task)
                    running.append(_start(context, task, trade))
                    monitor.started(task)
                if stop.requested and not running:
                    break
                if not running:  # what is left waits for a warm-up that failed
                    for task in waiting:
                        problems[task.title] = f"its warm-up failed: {problems.get(_warm_title(task), '')}"
                        monitor.ended(task, problems[task.title])
                    break
                for ended in _listen(running, monitor.progress):
                    running.remove(ended)
                    if stop.requested and (ended.outcome is None or ended.outcome[0] == "stopped"):
                        ended.line.close()
                        stopped = True  # in order, or before it had begun; the same command goes on from there
                        continue
                    if problem := _problem(ended):
                        problems[ended.task.title] = problem
                    monitor.ended(ended.task, problem)
                if stop.requested and not asked:
                    asked = True  # once: a second signal would end a process before its checkpoint
                    for each in running:
                        each.process.terminate()
        except BaseException:
            for each in running:
                each.process.kill()
            raise
    if stop.requested and (waiting or stopped):
        raise Interrupted("stopped; the same command goes on from here")
    return problems


def _next_ready(waiting: list[Task], running: list[Running], problems: dict[str, str]) -> Task | None:
    warming = {task.seed for task in (*waiting, *(each.task for each in running)) if task.kind == "warm-up"}
    for task in waiting:
        if task.kind == "warm-up" or (task.seed not in warming and _warm_title(task) not in problems):
            return task
    return None


def _warm_title(task: Task) -> str:
    return f"warm-up, seed {task.seed}"


def _start(context: multiprocessing.context.ForkServerContext, task: Task, trade: Trade) -> Running:
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(task, theirs, trade), name=task.title)
    process.start()
    theirs.close()
    return Running(task, process, ours)


def _listen(running: list[Running], progress: Callable[[Task, int, int, str], None]) -> list[Running]:
    """Hear what the processes say; those that have ended."""
    by_line = {each.line: each for each in running}
    for line in wait(list(by_line), timeout=0.3):
        _hear(by_line[line], progress)  # type: ignore[index]
    ended = [each for each in running if each.process.exitcode is not None]
    for each in ended:  # what was said since
        _hear(each, progress)
    return ended


def _hear(each: Running, progress: Callable[[Task, int, int, str], None]) -> None:
    try:
        while each.line.poll():
            kind, content = each.line.recv()
            if kind == "progress":
                progress(each.task, *content)
            else:
                each.outcome = (kind, content)
    except (EOFError, OSError):
        each.process.join()


def _problem(ended: Running) -> str | None:
    ended.line.close()
    if ended.outcome is None:
        return f"the process ended with status {ended.process.exitcode}; where it was killed, memory may have run out"
    kind, content = ended.outcome
    if kind == "failed":
        return str(content)
    return "stopped" if kind == "stopped" else None
