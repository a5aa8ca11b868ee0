"""What a run shows while it goes on: a live view in a terminal, plain lines elsewhere, or nothing."""

import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from crodobo.cli.console import PLAIN_EVERY, NumbersColumn, SteadyConsole, files
from crodobo.core.metrics import QueryRecord, StreamRecord
from crodobo.core.observer import Observer as Watching
from crodobo.inbox.counts import FileCounts as Tally


def make_reporter(quiet: bool) -> "QuietReporter | LiveReporter | PlainReporter":
    """The reporter that suits where the output goes."""
    console = SteadyConsole()
    if quiet:
        return QuietReporter()
    return LiveReporter(console) if console.is_terminal else PlainReporter(console)


def describe(record: StreamRecord) -> str:
    """The state of a stream in one line."""
    rows = record.rows
    parts = [f"online {percent(record.online_accuracy)}"]
    if (kept := recent(rows, "kept")) is not None:
        parts.append(f"kept {percent(kept)}")
    if (agreement := recent(rows, "agreement")) is not None:
        parts.append(f"agree {percent(agreement)}")
    parts.append(f"{recent(rows, 'seconds') or 0:.2f} s/query")
    counts = {name: sum(getattr(row, name) for row in rows) for name in ("skipped", "held", "restored")}
    for name, count in ({"refused": len(record.refused)} | counts).items():
        if count:
            parts.append(f"{name} {count}")
    return " · ".join(parts)


def recent(rows: list[QueryRecord], name: str) -> float | None:
    """Mean of a column over the last ten queries."""
    values = [value for row in rows[-10:] if (value := getattr(row, name)) is not None]
    return sum(values) / len(values) if values else None


def percent(value: float | None) -> str:
    """A fraction for people.

    >>> percent(0.8849)
    '88.5 %'
    """
    return "–" if value is None else f"{100 * value:.1f} %"


def describe_files(tally: Tally) -> str:
    """The state of a stream of files in one line."""
    parts = [f"{tally.predicted} predicted"]
    if tally.quarantined:
        parts.append(f"{tally.quarantined} in quarantine")
    if tally.waiting:
        parts.append(f"{tally.waiting} waiting")
    if tally.kept:
        parts.append(f"kept {percent(sum(tally.kept) / len(tally.kept))}")
    if tally.agreement:
        parts.append(f"agree {percent(sum(tally.agreement) / len(tally.agreement))}")
    for name, count in (("skipped", tally.skipped), ("held", tally.held), ("restored", len(tally.restored))):
        if count:
            parts.append(f"{name} {count}")
    if tally.seconds:
        parts.append(f"{tally.seconds[-1]:.2f} s/query · {tally.rate:.1f} files/s")
    return " · ".join(parts)


class QuietReporter(Watching):
    """Says nothing; warnings among the notes are dropped too, since the result holds them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class PlainReporter(QuietReporter):
    """A line every few seconds, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = 0.0
        self._steps = self._warmed = self._queries = self._told = 0

    def note(self, text: str) -> None:
        self._print(text)

    def reading(self, done: int, total: int) -> None:
        if self._due() or done == total:
            self._print(f"decoding the source into the cache: {done}/{total}")

    def warming_up(self, steps: int) -> None:
        self._steps = steps
        self._print(f"warm-up on the source: {steps} steps")

    def warmed_up_step(self) -> None:
        self._warmed += 1
        if self._due():
            self._print(f"warm-up {self._warmed}/{self._steps}")

    def streaming(self, queries: int) -> None:
        self._queries = queries
        self._print(f"stream: {queries} queries" if queries else "stream: files as they are there")

    def query(self, record) -> None:
        return
        if self._due() or record.queries == self._queries:
            left = (self._queries - record.queries) * (recent(record.rows, "seconds") or 0)
            self._print(f"query {record.queries}/{self._queries} · {describe(record)} · {left:.0f} s left")

    def tally(self, tally: Tally) -> None:
        if tally.predicted + tally.quarantined != self._told and self._due():
            self._told = tally.predicted + tally.quarantined
            self._print(describe_files(tally))

    def _due(self) -> bool:
        return time.monotonic() - self._last >= PLAIN_EVERY

    def _print(self, text: str) -> None:
        self._last = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveReporter(QuietReporter):
    """A bar that moves, with the numbers beside it."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            NumbersColumn(),
            console=console,
        )
        self._task = self._progress.add_task("loading data and libraries", total=None, visible=False)
        self._reading: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def reading(self, done: int, total: int) -> None:
        if self._reading is None:
            self._reading = self._progress.add_task("source ", total=total, numbers="decoding it into the cache, once")
        self._progress.update(self._reading, completed=done)

    def warming_up(self, steps: int) -> None:
        if steps:
            self._task = self._progress.add_task("warm-up", total=steps, numbers="learning the public source")

    def warmed_up_step(self) -> None:
        self._progress.advance(self._task)

    def streaming(self, queries: int) -> None:
        self._task = self._progress.add_task("stream ", total=queries or None, numbers="waiting for files")

    def query(self, record) -> None:
        return
        self._progress.update(self._task, completed=record.queries, numbers=describe(record))

    def tally(self, tally: Tally) -> None:
        done = tally.predicted + tally.quarantined
        if done:
            total = done + tally.waiting
            self._progress.update(self._task, completed=done, total=total, numbers=describe_files(tally))


def _facts() -> Table:
    """A table of names with what they are."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table


def protected(result: dict[str, Any]) -> dict[str, int]:
    """How often the learners were kept from harm, of each kind."""
    return {
        "skipped updates": result["skipped_updates"],
        "held queries": result["held_queries"],
        "restored weights": len(result["restored_weights"]),
    }


def print_summary(result: dict[str, Any], folder: Path) -> None:
    """The result in a few lines, and where the rest is."""
    console = SteadyConsole()
    table = _facts()
    table.add_row("online accuracy", f"[bold]{percent(result['online_accuracy'])}[/bold]")
    metric = "class average" if result["metric"] == "class-average" else "accuracy"
    table.add_row(f"one-pass {metric}", f"[bold]{percent(result['one_pass'])}[/bold]")
    if result["kept"] is not None:
        table.add_row("pseudo-labels kept", percent(result["kept"]))
    if result["agreement"] is not None:
        table.add_row("learners agree", percent(result["agreement"]))
    table.add_row("samples", f"{result['samples']} in {result['queries']} queries")
    table.add_row("erasure", result["protocol"]["burned"])
    table.add_row("time per query", f"{result['seconds_per_query']:.2f} s")
    table.add_row("peak memory", f"{result['peak_rss_mb']:.0f} MB")
    for name, count in (
        ("refused queries", len(result["refused_queries"])),
        *protected(result).items(),
    ):
        if count:
            table.add_row(name, str(count))
    console.print(
        f"\n{result['method']} on {result['benchmark']}, seed {result['seed']}", style="bold", highlight=False
    )
    console.print(table, highlight=False)
    console.print(f"{folder}/report.html", highlight=False, markup=False, soft_wrap=True)


def print_adapted(summary: dict[str, Any]) -> None:
    """What was done with the files of an inbox, and where the predictions are."""
    console = SteadyConsole()
    table = _facts()
    kept = "kept" if summary["kept_files"] else "deleted"
    table.add_row("predicted", f"[bold]{files(summary['predicted'])}[/bold], {kept}")
    if summary["deleted_late"]:
        table.add_row("deleted at the start", f"{files(summary['deleted_late'])}, predicted before the last stop")
    if summary["quarantined"]:
        table.add_row("in quarantine", f"{files(summary['quarantined'])}, in {summary['settings']['quarantine']}")
    if summary["predicted"]:
        shares = [f"{name} {count}" for name, count in list(summary["classes"].items())[:12]]
        table.add_row("taken for", ", ".join(shares) + (" …" if len(summary["classes"]) > 12 else ""))
        table.add_row("mean confidence", percent(summary["mean_confidence"]))
    if summary["kept"] is not None:
        table.add_row("pseudo-labels kept", percent(summary["kept"]))
    if summary["agreement"] is not None:
        table.add_row("learners agree", percent(summary["agreement"]))
    for name, count in protected(summary).items():
        if count:
            table.add_row(name, str(count))
    if summary["queries"]:
        table.add_row("queries", f"{summary['queries']}, {summary['queries_in_all']} in all")
        table.add_row("time per query", f"{summary['seconds_per_query']:.2f} s")
        table.add_row("erasure", summary["burned"])
    table.add_row("peak memory", f"{summary['peak_rss_mb']:.0f} MB")
    console.print(f"\n{summary['method']}", style="bold", highlight=False)
    console.print(table, highlight=False)
    console.print(summary["predictions"], highlight=False, markup=False, soft_wrap=True)
