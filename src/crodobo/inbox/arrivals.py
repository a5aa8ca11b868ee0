"""The folder in which private images arrive: what is there, what is still being written, and what becomes of it."""

import contextlib
import errno
import fcntl
import os
import signal
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from crodobo.errors import BadData, BadImage, CrodoboError
from crodobo.files import write_atomically

SETTLE = 2.0  # seconds for which a file has to be unchanged before it is read
PATIENCE = 15.0  # and before one that cannot be decoded is given up: its writer may only be slow
LARGEST = 512 * 2**20  # bytes of one file
UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".unfinished")


@dataclass(frozen=True, order=True)
class Arrival:
    """A file as it was when it was seen. One that comes later under the same name is another arrival."""

    modified: int  # nanoseconds
    name: str  # its path below the inbox
    size: int


class Changed(Exception):
    """The file is not as it was when it was seen."""


class Inbox:
    """A folder whose files are taken one by one.

    Parameters
    ----------
    folder
        Where images arrive.
    quarantine
        Where those go that cannot be decoded, each with its reason; on the same disk.
    recursive
        Whether folders in it are looked into.
    keep_files
        Leave files that have been predicted where they are.
    """

    def __init__(self, folder: Path, quarantine: Path, *, recursive: bool = False, keep_files: bool = False) -> None:
        self.folder, self.quarantine = folder, quarantine
        self.recursive, self.keep_files = recursive, keep_files
        self._seen: dict[str, tuple[Arrival, float]] = {}
        if not folder.is_dir():
            raise BadData(f"there is no folder {folder} to read images from; check --inbox")
        if not os.access(folder, os.R_OK | os.X_OK) or not (keep_files or os.access(folder, os.W_OK)):
            raise BadData(f"files in {folder} cannot be deleted; make the folder writable, or add --keep-files")
        try:
            quarantine.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadData(f"the quarantine {quarantine} cannot be made ({error.strerror}); name another") from None
        if quarantine.stat().st_dev != folder.stat().st_dev:
            raise BadData(
                f"the quarantine {quarantine} is on another disk than {folder}; name a folder on the same one"
            )
        if hasattr(
            signal, "SIGIO"
        ):  # what a writer's open sends to the holder of a lease; to be ignored, not to end us
            with contextlib.suppress(ValueError):  # not in the main thread: then it has been done before
                signal.signal(signal.SIGIO, signal.SIG_IGN)

    @contextlib.contextmanager
    def to_oneself(self) -> Iterator[None]:
        """Keep every other process that takes files from the folder out of it."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise CrodoboError(f"another process is taking files from {self.folder}; one at a time") from None
        except OSError:
            pass  # a disk without locks
        try:
            yield
        finally:
            os.close(descriptor)

    def scan(self) -> list[Arrival]:
        """All files that are there, the oldest first; hidden ones, and those named as unfinished, are left alone."""
        found = sorted(self._walk(self.folder, ""))
        now = time.monotonic()
        before = self._seen
        self._seen = {
            arrival.name: before[arrival.name]
            if arrival.name in before and before[arrival.name][0] == arrival
            else (arrival, now)
            for arrival in found
        }
        return found

    def unchanged_for(self, arrival: Arrival) -> float:
        """Seconds since the file was last written to, by its own time or by what was seen of it."""
        seen = self._seen.get(arrival.name)
        watched = time.monotonic() - seen[1] if seen and seen[0] == arrival else 0.0
        return max(watched, time.time() - arrival.modified / 1e9)

    def is_settled(self, arrival: Arrival) -> bool:
        """Whether nobody writes to the file any more."""
        return self.unchanged_for(arrival) >= SETTLE and not self._is_open_for_writing(arrival)

    def read(self, arrival: Arrival) -> bytes:
        """The file's content; raises `BadImage` if it cannot be had, `Changed` if it is another file by now."""
        path = self.folder / arrival.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise Changed from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadImage("it is a link, and what it points to would not be deleted") from None
            raise BadImage(f"it cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            if arrival.size > LARGEST:
                raise BadImage(f"it has more than {LARGEST // 2**20} MB")
            try:
                content = file.read()
            except OSError as error:
                raise BadImage(f"it cannot be read ({error.strerror})") from None
            status = os.fstat(file.fileno())
            if (status.st_mtime_ns, status.st_size, len(content)) != (arrival.modified, arrival.size, arrival.size):
                raise Changed
        return content

    def is_same(self, arrival: Arrival) -> bool:
        """Whether the file is there as it was seen."""
        try:
            status = (self.folder / arrival.name).lstat()
        except OSError:
            return False
        return (status.st_mtime_ns, status.st_size) == (arrival.modified, arrival.size)

    def delete(self, arrival: Arrival) -> bool:
        """Remove a file that has its prediction; one that came under the same name since is left. Whether it was."""
        if not self.is_same(arrival):
            return False
        try:
            (self.folder / arrival.name).unlink(missing_ok=True)
        except OSError as error:
            raise CrodoboError(
                f"{self.folder / arrival.name} has its prediction but cannot be deleted ({error.strerror}); make "
                "the inbox writable, then the same command goes on"
            ) from None
        return True

    def put_away(self, arrival: Arrival, reason: str) -> None:
        """Move a file to the quarantine, with the reason beside it."""
        place = self.quarantine / arrival.name.replace("/", "_")
        number = 0
        while place.exists() or place.is_symlink():
            number += 1
            place = place.with_name(f"{Path(arrival.name).stem}-{number}{Path(arrival.name).suffix}")
        try:
            write_atomically(place.with_name(f"{place.name}.reason.txt"), reason + "\n")
            (self.folder / arrival.name).rename(place)
        except FileNotFoundError:
            return  # somebody else has taken it
        except OSError as error:
            raise CrodoboError(
                f"{self.folder / arrival.name} cannot be moved to the quarantine {self.quarantine} ({error.strerror})"
            ) from None

    def _walk(self, folder: Path, prefix: str) -> Iterator[Arrival]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        except OSError as error:
            raise CrodoboError(f"{folder} cannot be read any more ({error.strerror})") from None
        for entry in entries:
            if entry.name.startswith(".") or entry.name.lower().endswith(UNFINISHED):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                yield Arrival(status.st_mtime_ns, prefix + entry.name, status.st_size)
            elif self.recursive and stat.S_ISDIR(status.st_mode) and Path(entry.path) != self.quarantine:
                yield from self._walk(Path(entry.path), f"{prefix}{entry.name}/")

    def _is_open_for_writing(self, arrival: Arrival) -> bool:
        """Whether some process has the file open to write, where the system tells: it then gives no read lease."""
        if not hasattr(fcntl, "F_SETLEASE"):
            return False
        try:
            descriptor = os.open(self.folder / arrival.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False  # what is wrong with it is said when it is read
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return error.errno == errno.EAGAIN  # any other error: leases are not for this file or this disk
        finally:
            os.close(descriptor)
        return False
