"""The inbox: a folder in which private images arrive, and from which they are read, deleted or put into quarantine."""

import contextlib
import errno
import fcntl
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from crodobo.errors import BadData, BadImage, CrodoboError
from crodobo.inbox import deletion
from crodobo.inbox.folders import GONE, opened, opened_below, status_of
from crodobo.inbox.quarantine import USUAL_NAME, Quarantine
from crodobo.inbox.walk import Arrival, Left, Walk
from crodobo.storage.lock import try_lock

SETTLE = 2.0  # seconds for which a file has to be unchanged before it is read
PATIENCE = 15.0  # the same for a file that could not be decoded: its writer may only be slow
SKEW = 60.0  # seconds by which the clocks of two machines may differ; a file's time counts only if it is older
LARGEST = 512 * 2**20  # bytes of one file
FIX_AND_RESTART = "Fix the cause and start again."


class Changed(Exception):
    """The file is no longer as it was seen, or a process is still writing to it."""


class Inbox:
    """A folder whose files are read and deleted one by one.

    Files that cannot be decoded go to the `quarantine`, each with the reason. With `keep_files`, files stay where they
    are after they are predicted. No link in the inbox is followed, and nothing outside of it is deleted or moved.
    """

    def __init__(self, folder: Path, quarantine: Path, *, recursive: bool = False, keep_files: bool = False) -> None:
        self.folder, self.recursive, self.keep_files = folder, recursive, keep_files
        if not folder.is_dir():
            raise BadData(f"There is no folder {folder} to read images from.", "Check the path.", settings=("inbox",))
        if not os.access(folder, os.R_OK | os.X_OK):
            raise BadData(f"The folder {folder} is not readable.", "Make it readable.", settings=("inbox",))
        if not (keep_files or os.access(folder, os.W_OK)):
            remedy = "Make the folder writable, or keep the files."
            raise BadData(f"Files in {folder} cannot be deleted.", remedy, settings=("keep_files",))
        self.left: Counter[Left] = Counter()  # what the last scan did not take for an image, by reason
        self.still_linked = 0  # deleted files that have another name (a hard link) and still exist there
        self._status = folder.stat()
        self._quarantine = Quarantine(quarantine, folder, keep_files=keep_files)
        self._first_seen: dict[str, tuple[Arrival, float]] = {}
        self._given_up: set[Arrival] = set()  # cannot be decoded, and cannot be moved

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process that reads this inbox out of it."""
        with opened(self.folder) as descriptor:
            if not try_lock(descriptor):
                raise CrodoboError(f"Another process is taking files from {self.folder}.", "Stop it first.")
            yield

    def scan(self) -> list[Arrival]:
        """All files in the inbox, oldest first, without hidden files and files whose name says they are unfinished."""
        walk = self._walk()
        found = sorted(arrival for arrival in self._listed(walk.arrivals) if arrival not in self._given_up)
        now, before, self.left = time.monotonic(), self._first_seen, walk.left
        self._first_seen = {
            arrival.name: seen if (seen := before.get(arrival.name)) and seen[0] == arrival else (arrival, now)
            for arrival in found
        }
        return found

    def unchanged_for(self, arrival: Arrival) -> float:
        """Seconds without a change: as observed here, or by the file's own time if that is long ago."""
        seen = self._first_seen.get(arrival.name)
        observed = time.monotonic() - seen[1] if seen and seen[0] == arrival else 0.0
        age = time.time() - arrival.modified / 1e9
        return max(observed, age) if age >= SKEW else observed

    def read(self, arrival: Arrival) -> bytes:
        """The file's content. Raises `BadImage` if it is not readable, and `Changed` if it changed or is unfinished."""
        with self._opened_for(arrival) as (folder, name):
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            except FileNotFoundError:
                raise Changed from None
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise BadImage("it is a link, and deleting it would not delete the image") from None
                raise BadImage(f"it cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            if is_being_written(descriptor) or not arrival.is_unchanged(os.fstat(descriptor)):
                raise Changed
            if arrival.size > LARGEST:
                raise BadImage(f"it has more than {LARGEST // 2**20} MB")
            try:
                content = file.read()
            except OSError as error:
                raise BadImage(f"it cannot be read ({error.strerror})") from None
            if not arrival.is_unchanged(os.fstat(descriptor)) or len(content) != arrival.size:
                raise Changed
        return content

    def delete(self, arrival: Arrival) -> bool:
        """Delete a file that has its prediction. Returns False if it is gone or a newer one has its name."""
        with contextlib.suppress(Changed), self._opened_for(arrival) as (folder, name):
            try:
                if not arrival.is_unchanged(status_of(name, folder)):
                    return False
                deleted = deletion.delete(name, folder, arrival.is_file)
            except FileNotFoundError:
                return False
            except OSError as error:
                problem = f"{self.folder / arrival.name} has its prediction but cannot be deleted ({error.strerror})."
                raise CrodoboError(problem, "Make the inbox writable and start again.") from None
            self.still_linked += deleted is not None and deleted.st_nlink > 1
            return deleted is not None
        return False

    def half_deleted(self) -> list[Arrival]:
        """Files that a crash left in the middle of their deletion."""
        return self._listed(self._walk().half_deleted)

    def finish_deletion(self, arrival: Arrival, *, predicted: bool) -> None:
        """Delete a half-deleted file, or give it its name back if it has no prediction."""
        with contextlib.suppress(Changed, FileNotFoundError), self._opened_for(arrival) as (folder, name):
            status = status_of(deletion.PREFIX + name, folder)
            try:
                if not predicted:
                    deletion.restore(name, folder)
                elif arrival.is_file(status):
                    os.unlink(deletion.PREFIX + name, dir_fd=folder)
                    self.still_linked += status.st_nlink > 1
            except OSError as error:
                problem = f"The deletion of {self.folder / arrival.name} cannot be finished ({error.strerror})."
                raise CrodoboError(problem, "Make the inbox writable and start again.") from None

    def move_to_quarantine(self, arrival: Arrival, reason: str) -> bool:
        """Move a file to the quarantine, with the reason. Returns False if it is gone or a newer one has its name."""
        with contextlib.suppress(Changed), self._opened_for(arrival) as (folder, name):
            try:
                if not arrival.is_unchanged(status_of(name, folder)):
                    return False
                moved = self._quarantine.add(folder, arrival, reason)
            except FileNotFoundError:
                return False
            except OSError as error:
                place = f"the quarantine {self._quarantine.folder}"
                problem = f"{self.folder / arrival.name} cannot be moved to {place} ({error.strerror})."
                raise CrodoboError(problem, FIX_AND_RESTART) from None
            if not self._quarantine.moves_files:
                self._given_up.add(arrival)
            return moved
        return False

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The inbox as an open folder. Another folder at its path does not count."""
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(opened(self.folder))
                same = os.path.samestat(os.fstat(folder), self._status)
            except OSError:
                same = False
            if not same:
                raise CrodoboError(f"The inbox {self.folder} is gone.", FIX_AND_RESTART)
            yield folder

    @contextlib.contextmanager
    def _opened_for(self, arrival: Arrival) -> Iterator[tuple[int, str]]:
        """The open folder of a file, and its name there. Raises `Changed` if the folder is gone or is now a link."""
        *names, name = arrival.name.split("/")
        with self._opened() as root, contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(opened_below(root, names))
            except OSError as error:
                if error.errno in GONE:
                    raise Changed from None
                path = self.folder / arrival.name
                raise CrodoboError(f"{path} can no longer be accessed ({error.strerror}).", FIX_AND_RESTART) from None
            yield folder, name

    def _listed(self, walk: Callable[[int], Iterator[Arrival]]) -> list[Arrival]:
        with self._opened() as folder:
            try:
                return list(walk(folder))
            except OSError as error:
                problem = f"The folder {self.folder} is not readable ({error.strerror})."
                raise CrodoboError(problem, FIX_AND_RESTART) from None

    def _walk(self) -> Walk:
        def is_quarantine(name: str, status: os.stat_result) -> bool:
            return name == USUAL_NAME or self._quarantine.is_folder(status)

        return Walk(recursive=self.recursive, deletes=not self.keep_files, is_quarantine=is_quarantine)


def is_being_written(descriptor: int) -> bool:
    """Whether a process has the file open for writing. Linux tells: it then refuses a read lease."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # The signal that announces a writer who opens the file now. The default, SIGIO, would end the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN  # any other error: this file or disk does not support leases
    return False
