"""Checkpoints beside the work: an answer waits until what was learned with it is on disk, the next query does not."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass
class _Waiting(Generic[State]):
    state: State
    written: "Future[None]"


class Saver(Generic[State]):
    """Writes the states that it is given, one at a time, in a thread of its own.

    A state that comes while another is being written waits. If a newer one comes until then, that is written in its
    place, since it knows all that the older one did. So a slow disk delays answers, and no query.

    Parameters
    ----------
    write
        Puts a state on disk; what it raises is told to all who wait for that state.

    Examples
    --------
    >>> written = []
    >>> saver = Saver(written.append)
    >>> saver.save(1).result()
    >>> written
    [1]
    >>> saver.close()
    """

    def __init__(self, write: Callable[[State], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: _Waiting[State] | None = None

    def save(self, state: State) -> "Future[None]":
        """Have a state written; done when it, or a newer one, is on disk."""
        with self._lock:
            if self._waiting:
                self._waiting.state = state
            else:
                self._waiting = _Waiting(state, self._thread.submit(self._write_waiting))
            return self._waiting.written

    def close(self) -> None:
        """Come back when all is written."""
        self._thread.shutdown()

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        assert waiting
        self._write(waiting.state)
