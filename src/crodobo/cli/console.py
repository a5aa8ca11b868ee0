"""What all terminal output shares: a console, progress bars, and words for numbers."""

import contextlib
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_EVERY = 5.0  # seconds between plain lines


class SteadyConsole(Console):
    """A console that goes quiet when its pipe closes, so that the command can finish."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def print_line(self, text: str) -> None:
        """Print text as it is: without markup, highlighting or wrapping."""
        self.print(text, highlight=False, markup=False, soft_wrap=True)


def text_beside_events(log: Path | None) -> contextlib.AbstractContextManager[object]:
    """Text goes to standard error while the event log goes to standard output."""
    return contextlib.redirect_stdout(sys.stderr) if log == Path("-") else contextlib.nullcontext()


def make_bars(console: Console) -> Progress:
    """Progress bars with a description, a count, the time left, and the field `numbers` of a task."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[numbers]}", style="cyan", markup=False),
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
