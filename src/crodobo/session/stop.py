"""Ctrl-C and SIGTERM as a request that the run heeds when it is in order."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Inside its `with`, the first signal only sets `requested`; the second does what signals do."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._give_back()
        # Not print: the signal may have come in the middle of one, which cannot be entered twice.
        os.write(2, b"\nstopping as soon as all is in order; once more stops at once\n")

    def _give_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
