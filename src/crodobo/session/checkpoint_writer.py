"""Writing checkpoints: at once, or in the background."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from crodobo.errors import CrodoboError
from crodobo.session.checkpoint import amend_checkpoint, save_checkpoint
from crodobo.session.events import Log
from crodobo.storage.tensors import UnreadableTensors


class CheckpointData(NamedTuple):
    """What a checkpoint stores: the method's state and the progress after a query."""

    tensors: dict[str, Tensor]
    progress: dict[str, Any]
    query: int


class CheckpointWriter:
    """Writes the checkpoints of one session.

    In the background one snapshot is written at a time. If another one waits and a newer one arrives, only the newer
    one is written, because it includes everything the older one knew. So a slow disk delays answers, but no query.

    If a checkpoint must be durable, `failed` is called when it could not be written, before the error is raised.
    Otherwise `note` is called with a sentence about it, and the stream goes on.
    """

    def __init__(
        self,
        folder: Path,
        log: Log,
        note: Callable[[str], None] = lambda _: None,
        failed: Callable[[CrodoboError], None] | None = None,
    ) -> None:
        self.identity: dict[str, Any] = {}
        self._folder, self._log, self._note, self._failed = folder, log, note, failed
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._waiting: CheckpointData | None = None
        self._written: Future[None] = Future()  # done when the waiting snapshot is on disk

    def save(self, snapshot: CheckpointData) -> bool:
        """Write a snapshot. Returns whether it is on disk; an error is raised only if it must be."""
        try:
            self.write(snapshot)
        except CrodoboError as error:
            if self._failed:
                raise
            self._note(f"{error.problem} The stream goes on without it.")
            return False
        return True

    def write(self, snapshot: CheckpointData) -> None:
        """Write a snapshot, after those that wait, and return when it is on disk."""
        self._submit(snapshot).result()

    def write_later(self, snapshot: CheckpointData) -> "Future[None]":
        """Copy a snapshot and have it written. The future is done when it, or a newer one, is on disk."""
        copy = {name: value.clone() for name, value in snapshot.tensors.items()}
        return self._submit(snapshot._replace(tensors=copy))

    def amend(self, progress: dict[str, Any]) -> None:
        """Replace values of the progress in the checkpoint, after those that wait. Its tensors stay as they are."""
        self._thread.submit(self._write, lambda: amend_checkpoint(self._folder, progress)).result()

    def close(self) -> None:
        """Return when everything is written."""
        self._thread.shutdown()

    def _submit(self, snapshot: CheckpointData) -> "Future[None]":
        with self._lock:
            if self._waiting is None:
                self._written = self._thread.submit(self._write_waiting)
            self._waiting = snapshot
            return self._written

    def _write_waiting(self) -> None:
        with self._lock:
            snapshot, self._waiting = self._waiting, None
        assert snapshot
        self._write(lambda: save_checkpoint(self._folder, snapshot.tensors, self.identity, snapshot.progress))
        self._log.write("checkpoint", query=snapshot.query)

    def _write(self, save: Callable[[], None]) -> None:
        try:
            save()
        except (OSError, MemoryError, SafetensorError, UnreadableTensors) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            problem = f"No checkpoint could be written to {self._folder} ({reason})."
            failure = CrodoboError(problem, "Put that right, then run the same command to go on.")
            if self._failed:
                self._failed(failure)
            raise failure from None
