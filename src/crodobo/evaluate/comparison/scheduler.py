"""Runs tasks in processes, several at a time."""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess

from crodobo.core.observer import Observer
from crodobo.errors import Interrupted
from crodobo.evaluate.comparison.plan import Task
from crodobo.evaluate.comparison.tasks import COMPARISON_TASKS, TaskHandlers, run_task
from crodobo.session.stop import StopSignal


@dataclass
class RunningTask:
    """A task and its process. `outcome` is the last message of the process: `done`, `stopped` or `failed`."""

    task: Task
    process: ForkServerProcess
    connection: Connection
    outcome: tuple[str, str] | None = None


def run_tasks(
    tasks: Sequence[Task], jobs: int, observer: Observer, handlers: TaskHandlers = COMPARISON_TASKS
) -> dict[str, str]:
    """Run the tasks that are not finished, `jobs` at a time, and return the problems by task title.

    Finished tasks are skipped, and unfinished ones continue from their checkpoints. If a task fails, the others go on.
    Ctrl-C lets the running tasks write their checkpoints, and then raises `Interrupted`.
    """
    waiting = [task for task in tasks if handlers.finished(task) is None]
    observer.jobs(len(tasks), len(tasks) - len(waiting))
    seeds = {task.seed for task in waiting if task.kind != "warm-up"}
    waiting = [task for task in waiting if task.kind != "warm-up" or task.seed in seeds]
    problems: dict[str, str] = {}
    asked_to_stop = any_stopped = False
    running: list[RunningTask] = []
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crodobo.evaluate.comparison.tasks"])
    with StopSignal() as stop:
        try:
            while waiting or running:
                while len(running) < jobs and not stop.requested and (task := _next_ready(waiting, running, problems)):
                    waiting.remove(task)
                    running.append(_start(context, task, handlers))
                    observer.job_started(task.title)
                if stop.requested and not running:
                    break
                if not running:  # every waiting task needs a warm-up that failed
                    for task in waiting:
                        problems[task.title] = f"Its warm-up failed: {problems.get(_warm_up_title(task), '')}"
                        observer.job_ended(task.title, problems[task.title])
                    break
                for ended in _receive(running, observer.job_progress):
                    running.remove(ended)
                    if stop.requested and (ended.outcome is None or ended.outcome[0] == "stopped"):
                        ended.connection.close()
                        any_stopped = True  # the same command continues this task
                        continue
                    if problem := _problem(ended):
                        problems[ended.task.title] = problem
                    observer.job_ended(ended.task.title, problem)
                if stop.requested and not asked_to_stop:
                    asked_to_stop = True  # only once: a second signal would end a process before its checkpoint
                    for each in running:
                        each.process.terminate()
        except BaseException:
            for each in running:
                each.process.kill()
            raise
    if stop.requested and (waiting or any_stopped):
        raise Interrupted("Stopped.", "The same command continues from here.")
    return problems


def _next_ready(waiting: list[Task], running: list[RunningTask], problems: dict[str, str]) -> Task | None:
    """The first task whose warm-up is done."""
    warming = {task.seed for task in (*waiting, *(each.task for each in running)) if task.kind == "warm-up"}
    for task in waiting:
        if task.kind == "warm-up" or (task.seed not in warming and _warm_up_title(task) not in problems):
            return task
    return None


def _warm_up_title(task: Task) -> str:
    return f"warm-up, seed {task.seed}"


def _start(context: multiprocessing.context.ForkServerContext, task: Task, handlers: TaskHandlers) -> RunningTask:
    ours, theirs = context.Pipe()
    process = context.Process(target=run_task, args=(task, theirs, handlers), name=task.title)
    process.start()
    theirs.close()
    return RunningTask(task, process, ours)


def _receive(running: list[RunningTask], progress: Callable[[str, int, int, str], None]) -> list[RunningTask]:
    """Read the messages of all processes, and return the tasks that ended."""
    by_connection = {each.connection: each for each in running}
    for connection in wait(list(by_connection), timeout=0.3):
        _read_messages(by_connection[connection], progress)  # type: ignore[index]
    ended = [each for each in running if each.process.exitcode is not None]
    for each in ended:  # messages that came in the meantime
        _read_messages(each, progress)
    return ended


def _read_messages(each: RunningTask, progress: Callable[[str, int, int, str], None]) -> None:
    try:
        while each.connection.poll():
            kind, content = each.connection.recv()
            if kind == "progress":
                progress(each.task.title, *content)
            else:
                each.outcome = (kind, content)
    except (EOFError, OSError):
        each.process.join()


def _problem(ended: RunningTask) -> str | None:
    ended.connection.close()
    if ended.outcome is None:
        status = ended.process.exitcode
        return f"The process ended with status {status}. If it was killed, memory may have run out."
    kind, content = ended.outcome
    return {"failed": content, "stopped": "Stopped.", "done": None}[kind]
