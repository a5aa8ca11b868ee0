"""What all terminal output shares: a console, progress bars, and words for numbers."""

import os
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

PLAIN_EVERY = 5.0  # seconds between plain lines


class SteadyConsole(Console):
    """A console that goes quiet when its pipe closes, so that the command can finish."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def print_line(self, text: str) -> None:
        """Print text as it is: without markup, highlighting or wrapping."""
        self.print(text, highlight=False, markup=False, soft_wrap=True)


class NumbersColumn(ProgressColumn):
    """The field `numbers` of a task."""

    def render(self, task: Task) -> Text:
        return Text(str(task.fields.get("numbers", "")), style="cyan")


def make_bars(console: Console) -> Progress:
    """Progress bars with a description, a count, the time left, and numbers."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        NumbersColumn(),
        console=console,
    )


def files(count: int) -> str:
    """A number of files in words.

    >>> files(1), files(2)
    ('1 file', '2 files')
    """
    return f"{count} file{'' if count == 1 else 's'}"


def percent(value: float | None) -> str:
    """A fraction as a percentage.

    >>> percent(0.8849), percent(None)
    ('88.5 %', '–')
    """
    return "–" if value is None else f"{100 * value:.1f} %"


class Bar:
    """The progress of one job: a live bar in a terminal, a line every few seconds elsewhere, or nothing."""

    def __init__(self, name: str, quiet: bool) -> None:
        self._console = SteadyConsole(quiet=quiet)
        self._last = 0.0
        self._bars = make_bars(self._console) if self._console.is_terminal and not quiet else None
        if self._bars:
            self._task = self._bars.add_task(name, total=None, visible=False)

    def __enter__(self) -> Self:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars:
            self._bars.stop()

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print_line(text)

    def show(self, done: int, total: int, numbers: str = "") -> None:
        """Show that `done` of `total` are done."""
        if self._bars:
            self._bars.update(self._task, completed=done, total=total, numbers=numbers, visible=True)
        elif time.monotonic() - self._last >= PLAIN_EVERY or done == total:
            self._last = time.monotonic()
            self.note(f"{done}/{total}{' · ' if numbers else ''}{numbers}")
