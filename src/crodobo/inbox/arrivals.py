"""The inbox: a folder in which private images arrive, and from which they are read, deleted or put into quarantine."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from crodobo.errors import BadData, BadImage, CrodoboError
from crodobo.inbox import deletion
from crodobo.inbox.quarantine import USUAL_NAME, Quarantine
from crodobo.storage.lock import try_lock

SETTLE = 2.0  # seconds for which a file has to be unchanged before it is read
PATIENCE = 15.0  # the same for a file that could not be decoded: its writer may only be slow
SKEW = 60.0  # seconds by which the clocks of two machines may differ; a file's time counts only if it is older
LARGEST = 512 * 2**20  # bytes of one file
FIX_AND_RESTART = "Fix the cause and start again."
UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".unfinished")


class Arrival(NamedTuple):
    """A file as it was when it was seen. A later file of the same name is another arrival."""

    modified: int  # nanoseconds
    name: str  # its path below the inbox
    size: int

    def has_status(self, status: os.stat_result) -> bool:
        """Whether the status is still that of the file as it was seen."""
        return (status.st_mtime_ns, status.st_size) == (self.modified, self.size)


class Changed(Exception):
    """The file is no longer as it was seen, or a process is still writing to it."""


class Inbox:
    """A folder whose files are read and deleted one by one.

    Files that cannot be decoded go to the `quarantine`, each with the reason. With `keep_files`, files stay where they
    are after they are predicted.
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
        self._status = folder.stat()
        self._quarantine = Quarantine(quarantine, folder, keep_files=keep_files)
        self._first_seen: dict[str, tuple[Arrival, float]] = {}
        self._given_up: set[Arrival] = set()  # cannot be decoded, and cannot be moved

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process that reads this inbox out of it."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            if not try_lock(descriptor):
                raise CrodoboError(f"Another process is taking files from {self.folder}.", "Stop it first.")
            yield
        finally:
            os.close(descriptor)

    def scan(self) -> list[Arrival]:
        """All files in the inbox, oldest first, without hidden files and files whose name says they are unfinished."""
        same_folder = False
        with contextlib.suppress(OSError):
            same_folder = os.path.samestat(self.folder.stat(), self._status)
        if not same_folder:
            raise CrodoboError(f"The inbox {self.folder} is gone.", FIX_AND_RESTART)
        found = sorted(arrival for arrival in self._walk(self.folder, "") if arrival not in self._given_up)
        now, before = time.monotonic(), self._first_seen
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
        try:
            descriptor = os.open(self.folder / arrival.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise Changed from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadImage("it is a link, and deleting it would not delete the image") from None
            raise BadImage(f"it cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            if is_being_written(descriptor) or not arrival.has_status(os.fstat(descriptor)):
                raise Changed
            if arrival.size > LARGEST:
                raise BadImage(f"it has more than {LARGEST // 2**20} MB")
            try:
                content = file.read()
            except OSError as error:
                raise BadImage(f"it cannot be read ({error.strerror})") from None
            if not arrival.has_status(os.fstat(descriptor)) or len(content) != arrival.size:
                raise Changed
        return content

    def is_same(self, arrival: Arrival) -> bool:
        """Whether the file is still there as it was seen."""
        path = self.folder / arrival.name
        try:
            return arrival.has_status(path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise CrodoboError(f"{path} can no longer be accessed ({error.strerror}).", FIX_AND_RESTART) from None

    def delete(self, arrival: Arrival) -> bool:
        """Delete a file that has its prediction. Returns False if it is gone or a newer one has its name."""
        return self.is_same(arrival) and deletion.delete(self.folder / arrival.name, arrival.has_status)

    def half_deleted(self) -> list[Arrival]:
        """Files that a crash left in the middle of their deletion."""
        found = []
        for path in deletion.half_deleted(self.folder, recursive=self.recursive):
            status = deletion.temporary_name(path).lstat()
            found.append(Arrival(status.st_mtime_ns, str(path.relative_to(self.folder)), status.st_size))
        return found

    def finish_deletion(self, arrival: Arrival, *, predicted: bool) -> None:
        """Delete a half-deleted file, or give it its name back if it has no prediction."""
        path = self.folder / arrival.name
        temporary = deletion.temporary_name(path)
        if predicted:
            temporary.unlink(missing_ok=True)
        else:
            deletion.restore(path, temporary)

    def move_to_quarantine(self, arrival: Arrival, reason: str) -> bool:
        """Move a file to the quarantine, with the reason. Returns False if it is gone or a newer one has its name."""
        path = self.folder / arrival.name
        if not self.is_same(arrival):
            return False
        try:
            moved = self._quarantine.add(path, arrival.name, reason)
        except OSError as error:
            problem = f"{path} cannot be moved to the quarantine {self._quarantine.folder} ({error.strerror})."
            raise CrodoboError(problem, FIX_AND_RESTART) from None
        if not self._quarantine.moves_files:
            self._given_up.add(arrival)
        return moved

    def _walk(self, folder: Path, prefix: str) -> Iterator[Arrival]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CrodoboError(f"The folder {folder} is not readable ({error.strerror}).", FIX_AND_RESTART) from None
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower().endswith(UNFINISHED):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                is_link = stat.S_ISLNK(status.st_mode)
                if stat.S_ISREG(status.st_mode) or (is_link and not entry.is_dir()):
                    yield Arrival(status.st_mtime_ns, prefix + entry.name, status.st_size)
                    continue
            except FileNotFoundError:
                continue
            is_quarantine = self._quarantine.is_folder(status) or (prefix, entry.name) == ("", USUAL_NAME)
            if self.recursive and stat.S_ISDIR(status.st_mode) and not is_quarantine:
                yield from self._walk(Path(entry.path), f"{prefix}{entry.name}/")


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
