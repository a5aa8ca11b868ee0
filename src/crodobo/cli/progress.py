"""The progress of a command: live bars in a terminal, plain lines in logs and pipes, or nothing."""

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from rich.progress import TaskID

from crodobo.cli.console import PLAIN_EVERY, SteadyConsole, make_bars, percent
from crodobo.core.counts import Counts
from crodobo.core.observer import Observer
from crodobo.inbox.counts import FileCounts

LAST = 10  # queries that the shown means are taken over


def make_observer(quiet: bool, notes: Iterable[str] = ()) -> "QuietView":
    """The view that suits the output, with notes to begin with."""
    console = SteadyConsole()
    view = QuietView() if quiet else LiveView(console) if console.is_terminal else PlainView(console)
    for note in notes:
        view.note(note)
    return view


def describe(counts: Counts) -> str:
    """The state of a stream in one line.

    >>> describe(FileCounts(queries=2, samples=16, quarantined=1, skipped=1))
    '16 predicted · 1 in quarantine · skipped 1'
    >>> describe(Counts(queries=2, samples=16, accuracy=0.75))
    'online 75.0 %'
    """
    parts = [f"{counts.samples} predicted" if counts.accuracy is None else f"online {percent(counts.accuracy)}"]
    if isinstance(counts, FileCounts):
        for number, state in ((counts.quarantined, "in quarantine"), (counts.waiting, "waiting")):
            parts += [f"{number} {state}"] if number else []
    for label, name in (("kept", "kept"), ("agree", "agreement")):
        mean = counts.mean(name, LAST)
        parts += [] if mean is None else [f"{label} {percent(mean)}"]
    parts += [f"estimated {counts.estimate}"] if counts.estimate else []
    if counts.seconds:
        parts.append(f"{counts.mean('seconds', LAST):.2f} s/query")
        parts += [f"{counts.rate:.1f} samples/s"] if counts.accuracy is None else []
    events = {"refused": counts.refused, "skipped": counts.skipped}
    events["predicted only"] = counts.predicted_only.total()
    for name, number in (events | {"restored": len(counts.restored)}).items():
        parts += [f"{name} {number}"] if number else []
    return " · ".join(parts)


def done_and_total(counts: Counts, queries: int) -> tuple[int, int]:
    """How far a stream is: in queries if their number is known, otherwise in samples.

    >>> done_and_total(Counts(queries=3, refused=1), queries=8)
    (4, 8)
    >>> done_and_total(FileCounts(samples=20, quarantined=2, waiting=5), queries=0)
    (22, 27)
    """
    if queries:
        return counts.queries + counts.refused, queries
    if isinstance(counts, FileCounts):
        done = counts.samples + counts.quarantined
        return done, done + counts.waiting
    return counts.samples, counts.samples


class QuietView(Observer):
    """Shows nothing. Warnings are in the result."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def already_finished(self, folder: Path) -> None:
        self.note(f"The run in {folder} is finished already. Run it again with --fresh.")

    def show(self, name: str, done: int, total: int | None, numbers: str = "") -> None:
        """Show that this much of something is done."""


class PlainView(QuietView):
    """A line every few seconds, and one for each job that ends."""

    def __init__(self, console: SteadyConsole) -> None:
        self._console = console
        self._last = 0.0
        self._steps = self._steps_done = self._queries = self._shown = 0
        self._learners = 1
        self._jobs = self._jobs_ended = 0
        self._job_texts: dict[str, str] = {}
        self._job_starts: dict[str, float] = {}

    def note(self, text: str) -> None:
        self._print(text)

    def show(self, name: str, done: int, total: int | None, numbers: str = "") -> None:
        if self._due() or done == total:
            self._print(f"{name}: {done}/{total}{' · ' if numbers else ''}{numbers}")

    def reading(self, done: int, total: int) -> None:
        self.show("decoding the source into the cache", done, total)

    def warming_up(self, steps: int, learners: int = 1, rounds: int = 1) -> None:
        self._steps, self._learners = steps * rounds, learners
        each = f" for each of {learners} learners" if learners > 1 else ""
        twice = ", with and without source views" if rounds > 1 else ""
        self._print(f"warm-up on the source: {steps} steps{each}{twice}")

    def warmed_up_step(self) -> None:
        self._steps_done += 1
        if self._due():
            self._print(f"warm-up {self._steps_done // self._learners}/{self._steps}")

    def streaming(self, queries: int) -> None:
        self._queries = queries
        self._print(f"stream: {queries} queries" if queries else "stream: the files in the inbox")

    def query(self, counts: Counts) -> None:
        done, total = done_and_total(counts, self._queries)
        last = self._queries and done == total
        if not last and (done == self._shown or not self._due()):
            return
        self._shown = done
        if self._queries:
            seconds_left = (total - done) * (counts.mean("seconds", LAST) or 0)
            self._print(f"query {done}/{total} · {describe(counts)} · {seconds_left:.0f} s left")
        else:
            self._print(describe(counts))

    def jobs(self, total: int, finished: int) -> None:
        self._jobs, self._jobs_ended = total, finished
        self._print(f"{total} runs including warm-ups{f', {finished} already finished' if finished else ''}")

    def job_started(self, title: str) -> None:
        self._job_starts[title] = time.monotonic()

    def job_progress(self, title: str, done: int, total: int, text: str) -> None:
        self._job_texts[title] = text

    def job_ended(self, title: str, problem: str | None) -> None:
        self._jobs_ended += 1
        seconds = time.monotonic() - self._job_starts.get(title, time.monotonic())
        outcome = f"FAILED: {problem}" if problem else f"{self._job_texts.get(title, '')}, {seconds:.0f} s"
        self._print(f"{self._jobs_ended}/{self._jobs} {title}: {outcome}")

    def _due(self) -> bool:
        return time.monotonic() - self._last >= PLAIN_EVERY

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print_line(text)


class LiveView(QuietView):
    """Bars that move, with numbers beside them."""

    def __init__(self, console: SteadyConsole) -> None:
        self._console = console
        self.bars = make_bars(console)
        self._queries, self._learners = 0, 1
        self._steps = itertools.count(1)  # of the warm-up, all learners together
        self._shown: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def note(self, text: str) -> None:
        self._console.print_line(text)

    def show(self, name: str, done: int, total: int | None, numbers: str = "") -> None:
        if name not in self._shown:
            self._shown[name] = self.bars.add_task(name, total=None, numbers="")
        self.bars.update(self._shown[name], completed=done, total=total, numbers=numbers)

    def _advance(self, name: str) -> None:
        if name in self._shown:
            self.bars.advance(self._shown[name])

    def reading(self, done: int, total: int) -> None:
        self.show("source ", done, total, "decoding into the cache, only once")

    def warming_up(self, steps: int, learners: int = 1, rounds: int = 1) -> None:
        self._learners = learners
        if steps:
            twice = ", with and without source views" if rounds > 1 else ""
            self.show("warm-up", 0, steps * rounds, f"learning the public source{twice}")

    def warmed_up_step(self) -> None:
        if "warm-up" in self._shown:  # called from the learners' threads
            self.bars.update(self._shown["warm-up"], completed=next(self._steps) // self._learners)

    def streaming(self, queries: int) -> None:
        self._queries = queries
        self.show("stream ", 0, queries or None, "" if queries else "waiting for files")

    def query(self, counts: Counts) -> None:
        done, total = done_and_total(counts, self._queries)
        if done:
            self.show("stream ", done, total, describe(counts))

    def jobs(self, total: int, finished: int) -> None:
        self.show("all runs", finished, total, f"{finished} already finished" if finished else "")

    def job_started(self, title: str) -> None:
        self.show(title, 0, None)

    def job_progress(self, title: str, done: int, total: int, text: str) -> None:
        self.show(title, done, total, text)

    def job_ended(self, title: str, problem: str | None) -> None:
        if title in self._shown:
            self.bars.remove_task(self._shown.pop(title))
        self._advance("all runs")
        if problem:
            self.note(f"{title}: FAILED: {problem}")
