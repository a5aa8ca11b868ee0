"""Stop requests: Ctrl-C and SIGTERM as a request that is honoured at the next safe point."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

from crodobo.core.observer import Observer
from crodobo.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A request to stop. Any thread may make it, and any thread may look. A session enters it while it is open."""

    def __init__(self) -> None:
        self.requested = False  # not an Event: a signal that interrupts `Event.set` and sets it again would deadlock

    def request(self) -> None:
        """Ask for a stop at the next safe point."""
        self.requested = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to put back."""


class StopSignal(Stop):
    """Inside its `with`, the first Ctrl-C or SIGTERM requests a stop; the second one does what it always does.

    Signals that were ignored when the process started are handled too: a shell starts background jobs that way.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._put_handlers_back()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.request()
        self._put_handlers_back()
        # Not print: the signal may interrupt another print, which is not reentrant.
        os.write(2, b"\nStopping at the next safe point. Press Ctrl-C again to stop at once.\n")

    def _put_handlers_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class StoppableObserver(Observer):
    """Passes loading progress on, and raises `Interrupted` when a stop is requested."""

    def __init__(self, observer: Observer, stop: Stop) -> None:
        self._observer, self._stop = observer, stop
        self.is_warming_up = False

    def note(self, text: str) -> None:
        self._observer.note(text)

    def reading(self, done: int, total: int) -> None:
        self._check("while the source was being decoded")
        self._observer.reading(done, total)

    def warming_up(self, steps: int, learners: int = 1, rounds: int = 1) -> None:
        self.is_warming_up = True
        self._observer.warming_up(steps, learners, rounds)

    def warmed_up_step(self) -> None:
        self._check("during the warm-up")
        self._observer.warmed_up_step()

    def _check(self, when: str) -> None:
        if self._stop.requested:
            raise Interrupted(f"Stopped {when}.", "Run the same command to start again.")
