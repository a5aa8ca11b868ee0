"""Writing checkpoints: at once, or in the background."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from crodobo.errors import CrodoboError
from crodobo.session.checkpoint import save_checkpoint
from crodobo.session.events import Log


class Snapshot(NamedTuple):
    """What a checkpoint stores: the method's state and the progress after a query."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    query: int


@dataclass
class _Waiting:
    snapshot: Snapshot
    written: "Future[None]"


class CheckpointWriter:
    """Writes the checkpoints of one session.

    In the background one snapshot is written at a time. If another one waits and a newer one arrives, only the newer
    one is written, because it includes everything the older one knew. So a slow disk delays answers, but no query.

    Parameters
    ----------
    folder
        Where the checkpoint goes.
    log
        Told of each checkpoint.
    failed
        Called with the error when a checkpoint could not be written, before it is raised.
    """

    def __init__(self, folder: Path, log: Log, failed: Callable[[CrodoboError], None] | None = None) -> None:
        self.identity: dict[str, Any] = {}
        self._folder, self._log, self._failed = folder, log, failed
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: _Waiting | None = None

    def write(self, snapshot: Snapshot) -> None:
        """Write a snapshot, after those that wait, and return when it is on disk."""
        self._submit(snapshot).result()

    def write_later(self, snapshot: Snapshot) -> "Future[None]":
        """Copy a snapshot and have it written. The future is done when it, or a newer one, is on disk."""
        return self._submit(
            snapshot._replace(tensors={name: value.clone() for name, value in snapshot.tensors.items()})
        )

    def close(self) -> None:
        """Return when everything is written."""
        self._thread.shutdown()

    def _submit(self, snapshot: Snapshot) -> "Future[None]":
        with self._lock:
            if self._waiting:
                self._waiting.snapshot = snapshot
            else:
                self._waiting = _Waiting(snapshot, self._thread.submit(self._write_waiting))
            return self._waiting.written

    def _write_waiting(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        assert waiting
        self._replace(waiting.snapshot)

    def _replace(self, snapshot: Snapshot) -> None:
        try:
            save_checkpoint(self._folder, snapshot.tensors, self.identity, snapshot.progress)
        except (OSError, MemoryError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            failure = CrodoboError(
                f"No checkpoint could be written to {self._folder} ({reason}).",
                "Put that right, then run the same command to go on.",
            )
            if self._failed:
                self._failed(failure)
            raise failure from None
        self._log.write("checkpoint", query=snapshot.query)
