"""Output that suits where it goes: a bar in a terminal, plain lines elsewhere, or nothing."""

import os
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

PLAIN_EVERY = 5.0  # seconds between plain lines


class SteadyConsole(Console):
    """A console whose reader may leave: the run goes on without it."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


class NumbersColumn(ProgressColumn):
    """The numbers of a task, as it last gave them."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("numbers", "")), style="cyan")


def files(count: int) -> str:
    """So many files, for people.

    >>> files(1), files(2)
    ('1 file', '2 files')
    """
    return f"{count} file{'' if count == 1 else 's'}"


class Bar:
    """How far a job is: a bar that moves, a line every few seconds, or nothing."""

    def __init__(self, name: str, quiet: bool) -> None:
        self._console = SteadyConsole(quiet=quiet)
        self._last = 0.0
        self._progress: Progress | None = None
        if self._console.is_terminal and not quiet:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TimeRemainingColumn(compact=True),
                NumbersColumn(),
                console=self._console,
            )
            self._task = self._progress.add_task(name, total=None, visible=False)

    def __enter__(self) -> Self:
        if self._progress:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress:
            self._progress.stop()

    def note(self, text: str) -> None:
        """Say something for good."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, done: int, total: int, numbers: str = "") -> None:
        """How much is done."""
        if self._progress:
            self._progress.update(self._task, completed=done, total=total, numbers=numbers, visible=True)
        elif time.monotonic() - self._last >= PLAIN_EVERY or done == total:
            self._last = time.monotonic()
            self.note(f"{done}/{total}{' · ' if numbers else ''}{numbers}")
