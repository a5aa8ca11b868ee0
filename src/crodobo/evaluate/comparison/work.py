"""What one process of a comparison does: one task, telling how it goes."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from crodobo.core.metrics import StreamRecord
from crodobo.core.observer import Observer
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted
from crodobo.evaluate.comparison.plan import Task
from crodobo.evaluate.outcome import peak_memory
from crodobo.evaluate.protocols import offline, steps_of_epoch
from crodobo.evaluate.run import finished, identity_of, load_data, make_method, run, warm
from crodobo.methods import get_method
from crodobo.session.stop import StopSignal
from crodobo.session.warm_start import load_warm_start, save_warm_start, stored_learners
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_folder


@dataclass(frozen=True)
class Trade:
    """How tasks of each kind are done, and what shows that one is done already."""

    deeds: "dict[str, Callable[[Any, LineReporter], None]]"
    finished: Callable[[Any], object | None]


def work(task: Task, line: Connection, trade: Trade) -> None:
    """Carry out a task in this process, reporting over the line; what it prints goes to a log file."""
    os.setpgrp()  # Ctrl-C in the terminal reaches the parent alone, which passes it on
    log = task.folder / (f"{task.warm_start.stem}.log" if task.kind == "warm-up" else "log.txt")
    try:
        task.folder.mkdir(parents=True, exist_ok=True)
        for stream in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
    except OSError as error:
        line.send(("failed", f"{task.folder} cannot be written to ({error.strerror}); move away what is there"))
        return
    try:
        threading.Thread(target=_follow_parent, args=(line,), daemon=True).start()
        trade.deeds[task.kind](task, LineReporter(line))
        message: tuple[str, str] = ("done", "")
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
        line.send(message)


class LineReporter(Observer):
    """Passes on how a run is doing."""

    def __init__(self, line: Connection) -> None:
        self._line = line
        self._done = self._total = 0
        self._text = ""
        self._sent = 0.0
        self._lock = threading.Lock()  # warm-up steps come from the learners' threads

    def warming_up(self, steps: int) -> None:
        self._begin(steps, "warm-up")

    def warmed_up_step(self) -> None:
        with self._lock:
            self._done += 1
            self._send()

    def streaming(self, queries: int) -> None:
        self._begin(queries, "")

    def query(self, record: StreamRecord) -> None:
        self._done, self._text = record.queries, f"online {100 * record.online_accuracy:.1f} %"
        self._send()

    def epochs(self, steps: int) -> None:
        self._begin(steps, "offline")

    def _begin(self, total: int, text: str) -> None:
        self._done, self._total, self._text = 0, total, text
        self._send(always=True)

    def _send(self, always: bool = False) -> None:
        if always or time.monotonic() - self._sent > 0.2 or self._done == self._total:
            self._sent = time.monotonic()
            with contextlib.suppress(OSError):
                self._line.send(("progress", (self._done, self._total, self._text)))


def warm_up(task: Task, reporter: LineReporter) -> None:
    """Let learners learn the source, for all tasks that wait for them."""
    options = task.settings.options
    benchmark = load_data(task.settings, reporter)
    with locked_folder(task.folder / f".{task.warm_start.stem}"), StopSignal() as stop:
        learners, seconds = warm(benchmark, options, reporter, stop)
        save_warm_start(task.warm_start, benchmark, learners, options, seconds)


def _online(task: Task, reporter: LineReporter) -> None:
    run(task.settings, task.folder, warm_start=task.warm_start, reporter=reporter)


def _offline(task: Task, reporter: LineReporter) -> None:
    options, size = task.settings.options, task.settings.query_size
    benchmark = load_data(task.settings, reporter)
    with locked_folder(task.folder), StopSignal() as stop:
        learners, _ = load_warm_start(task.warm_start, benchmark, options)
        method = make_method(get_method(task.settings.method), benchmark, learners, options)
        started = time.perf_counter()

        def after_step() -> None:
            if stop.requested:
                raise Interrupted("stopped in the middle of the offline epochs")
            reporter.warmed_up_step()

        reporter.epochs(task.epochs * steps_of_epoch(benchmark.source, benchmark.images, size))
        confusion = offline(
            method,
            benchmark.images,
            benchmark.labels,
            size=size,
            epochs=task.epochs,
            seed=task.settings.order_seed,
            after_step=after_step,
        )
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
    """The result of a task that has been carried out before, with the same settings."""
    if task.kind == "warm-up":
        return {} if stored_learners(task.warm_start, task.settings.options) >= task.settings.options.learners else None
    if task.kind == "online":
        return finished(task.folder, identity_of(task.settings.model_dump(mode="json")), replace="--fresh")
    try:
        result: dict[str, Any] = json.loads((task.folder / "offline.json").read_text())
    except (OSError, ValueError):
        return None
    same = identity_of(result["settings"]) == identity_of(task.settings.model_dump(mode="json"))
    if not same or result["epochs"] != task.epochs:
        raise BadCheckpoint(f"{task.folder} holds a finished run with other settings; choose another --out, or --fresh")
    return result


COMPARING = Trade({"warm-up": warm_up, "online": _online, "offline": _offline}, finished_result)


def _follow_parent(line: Connection) -> None:
    """Nothing is ever sent this way; the line breaks when the parent is gone, and then this process stops in order."""
    with contextlib.suppress(EOFError, OSError):
        line.recv()
    os.kill(os.getpid(), signal.SIGTERM)
