"""The tasks of a comparison. Each runs in a process of its own and reports its progress over a pipe."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from crodobo.core.counts import Counts
from crodobo.core.observer import Observer
from crodobo.core.process import peak_memory
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted
from crodobo.evaluate.comparison.plan import Task
from crodobo.evaluate.protocols import offline, steps_per_epoch
from crodobo.evaluate.run import finished, load_data, run
from crodobo.methods import get_method
from crodobo.session.stop import StoppableObserver, StopSignal
from crodobo.session.warm_start import load_warm_start, make_method, stored_learners, warm_learners
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_folder


class TaskHandlers(NamedTuple):
    """The function that runs each kind of task, and one that returns the result of a finished task, or None."""

    run: "dict[str, Callable[[Any, PipeObserver], None]]"
    finished: Callable[[Any], object | None]


def run_task(task: Task, connection: Connection, handlers: TaskHandlers) -> None:
    """Run a task in this process and report over the connection. Its output goes to a log file."""
    os.setpgrp()  # Ctrl-C in the terminal reaches only the parent, which passes it on
    log = task.folder / (f"{task.warm_start.stem}.log" if task.kind == "warm-up" else "log.txt")
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    except OSError as error:
        connection.send(("failed", f"Cannot write to {task.folder} ({error.strerror}). Remove what is in the way."))
        return
    try:
        threading.Thread(target=_stop_with_parent, args=(connection,), daemon=True).start()
        handlers.run[task.kind](task, PipeObserver(connection))
        message = ("done", "")
        if not log.stat().st_size:
            log.unlink()
    except Interrupted:
        message = ("stopped", "")
    except CrodoboError as error:
        message = ("failed", str(error))
    except BaseException as error:  # one method's failure must not end the others
        traceback.print_exc()
        sys.stderr.flush()
        message = ("failed", f"{type(error).__name__}: {error} (more in {log})")
    with contextlib.suppress(OSError):
        connection.send(message)


class PipeObserver(Observer):
    """Sends the progress of a task to the parent process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._done = self._total = 0
        self._text = ""
        self._sent = 0.0
        self._lock = threading.Lock()  # warm-up steps are reported from the learners' threads

    def warming_up(self, steps: int, learners: int = 1, rounds: int = 1) -> None:
        self.begin(steps * learners * rounds, "warm-up")

    def warmed_up_step(self) -> None:
        with self._lock:
            self._done += 1
            self._send()

    def streaming(self, queries: int) -> None:
        self.begin(queries, "")

    def query(self, counts: Counts) -> None:
        self._done, self._text = counts.queries + counts.refused, f"online {100 * (counts.accuracy or 0):.1f} %"
        self._send()

    def begin(self, total: int, text: str) -> None:
        """A new part of the task begins."""
        self._done, self._total, self._text = 0, total, text
        self._send(always=True)

    def _send(self, always: bool = False) -> None:
        if always or time.monotonic() - self._sent > 0.2 or self._done == self._total:
            self._sent = time.monotonic()
            with contextlib.suppress(OSError):
                self._connection.send(("progress", (self._done, self._total, self._text)))


def warm_up(task: Task, observer: PipeObserver) -> None:
    """Train learners on the source and store them for the other tasks of the seed."""
    options = task.settings.options
    benchmark = load_data(task.settings, observer)
    with locked_folder(task.folder / f".{task.warm_start.stem}"), StopSignal() as stop:
        task.warm_start.unlink(missing_ok=True)
        warm_learners(benchmark, options, StoppableObserver(observer, stop), task.warm_start)


def _run_online(task: Task, observer: PipeObserver) -> None:
    run(task.settings, task.folder, warm_start=task.warm_start, observer=observer)


def _run_offline(task: Task, observer: PipeObserver) -> None:
    options, size = task.settings.options, task.settings.query_size
    benchmark = load_data(task.settings, observer)
    with locked_folder(task.folder), StopSignal() as stop:
        learners, _ = load_warm_start(task.warm_start, benchmark, options)
        method = make_method(get_method(task.settings.method), benchmark, learners, options)
        started = time.perf_counter()

        def after_step() -> None:
            if stop.requested:
                raise Interrupted("Stopped during the offline epochs.")
            observer.warmed_up_step()

        observer.begin(task.epochs * steps_per_epoch(benchmark.source, benchmark.images, size), "offline")
        images, labels, seed = benchmark.images, benchmark.labels, task.settings.order_seed
        confusion = offline(method, images, labels, size=size, epochs=task.epochs, seed=seed, after_step=after_step)
        result = {
            "method": task.settings.method,
            "seed": task.seed,
            "epochs": task.epochs,
            "offline": confusion.class_average if benchmark.metric == "class-average" else confusion.accuracy,
            "offline_accuracy": confusion.accuracy,
            "offline_class_average": confusion.class_average,
            "per_class_accuracy": dict(zip(benchmark.source.classes, confusion.per_class, strict=True)),
            "seconds": time.perf_counter() - started,
            "peak_rss_mb": peak_memory(),
            "settings": task.settings.model_dump(mode="json"),
        }
        write_atomically(task.folder / "offline.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def finished_result(task: Task) -> dict[str, Any] | None:
    """The result of a task that is finished with the same settings, or None."""
    options = task.settings.options
    if task.kind == "warm-up":
        return {} if stored_learners(task.warm_start, options) >= options.learners else None
    if task.kind == "online":
        return finished(task.folder, task.settings)
    try:
        result: dict[str, Any] = json.loads((task.folder / "offline.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = task.settings.identity_of(result["settings"]) == task.settings.identity
    if not same or result["epochs"] != task.epochs:
        problem = f"{task.folder} holds a finished run with other settings."
        raise BadCheckpoint(problem, "Choose another result folder, or start over.", settings=("out", "fresh"))
    return result


COMPARISON_TASKS = TaskHandlers({"warm-up": warm_up, "online": _run_online, "offline": _run_offline}, finished_result)


def _stop_with_parent(connection: Connection) -> None:
    """Stop this process in order when the parent ends: it never sends anything, so `recv` waits until then."""
    with contextlib.suppress(EOFError, OSError):
        connection.recv()
    os.kill(os.getpid(), signal.SIGTERM)
