"""The folder in which private images arrive: what is there, what is still being written, and what becomes of it."""

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
from crodobo.storage.files import write_atomically

SETTLE = 2.0  # seconds for which a file has to be unchanged before it is read
PATIENCE = 15.0  # and before one that cannot be decoded is given up: its writer may only be slow
SKEW = 60.0  # a file's time counts when it is longer ago: clocks of two machines may differ by less
LARGEST = 512 * 2**20  # bytes of one file
UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".unfinished")
QUARANTINE = "quarantine"  # the usual name of that folder
REASON = ".reason.txt"
LEAVING = ".crodobo-deleting-"  # before the name of a file that is being deleted
LONGEST = 200  # bytes of a name in the quarantine, which leaves room for the reason's


class Arrival(NamedTuple):
    """A file as it was when it was seen. One that comes later under the same name is another arrival."""

    modified: int  # nanoseconds
    name: str  # its path below the inbox
    size: int


class Changed(Exception):
    """The file is not as it was when it was seen, or somebody still writes to it."""


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
        if not os.access(folder, os.R_OK | os.X_OK):
            raise BadData(f"the folder {folder} cannot be read; make it readable, or name another --inbox")
        if not (keep_files or os.access(folder, os.W_OK)):
            raise BadData(f"files in {folder} cannot be deleted; make the folder writable, or add --keep-files")
        try:
            quarantine.mkdir(parents=True, exist_ok=True)
            self._identity, self._quarantined = _identity(folder.stat()), _identity(quarantine.stat())
        except OSError as error:
            raise BadData(
                f"the quarantine {quarantine} cannot be made ({error.strerror}); name another with --quarantine"
            ) from None
        if self._identity == self._quarantined:
            raise BadData(f"the quarantine cannot be the inbox {folder} itself; name another folder with --quarantine")
        same_disk = self._identity[0] == self._quarantined[0]
        if not (keep_files or same_disk):
            raise BadData(
                f"the quarantine {quarantine} is on another disk than {folder}; name a folder on the same one"
            )
        self._can_move = same_disk and os.access(folder, os.W_OK)
        self._given_up: set[Arrival] = set()  # cannot be decoded, and cannot be moved

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
        try:
            there = _identity(self.folder.stat()) == self._identity
        except OSError:
            there = False
        if not there:
            raise CrodoboError(f"the inbox {self.folder} is gone; the same command goes on when it is there again")
        found = sorted(arrival for arrival in self._walk(self.folder, "") if arrival not in self._given_up)
        now = time.monotonic()
        before = self._seen
        self._seen = {
            arrival.name: seen if (seen := before.get(arrival.name)) and seen[0] == arrival else (arrival, now)
            for arrival in found
        }
        return found

    def unchanged_for(self, arrival: Arrival) -> float:
        """Seconds since the file was last written to, as it was watched, or by its own time if that is long ago."""
        seen = self._seen.get(arrival.name)
        watched = time.monotonic() - seen[1] if seen and seen[0] == arrival else 0.0
        by_its_time = time.time() - arrival.modified / 1e9
        return max(watched, by_its_time) if by_its_time >= SKEW else watched

    def read(self, arrival: Arrival) -> bytes:
        """The file's content; raises `BadImage` if it cannot be had, `Changed` if it is another or not yet whole."""
        path = self.folder / arrival.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise Changed from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise BadImage("it is a link, and what it points to would not be deleted") from None
            raise BadImage(f"it cannot be read ({error.strerror})") from None
        with open(descriptor, "rb") as file:
            if is_being_written(descriptor) or not _is_seen(arrival, os.fstat(descriptor)):
                raise Changed
            if arrival.size > LARGEST:
                raise BadImage(f"it has more than {LARGEST // 2**20} MB")
            try:
                content = file.read()
            except OSError as error:
                raise BadImage(f"it cannot be read ({error.strerror})") from None
            if not _is_seen(arrival, os.fstat(descriptor)) or len(content) != arrival.size:
                raise Changed
        return content

    def is_same(self, arrival: Arrival) -> bool:
        """Whether the file is there as it was seen."""
        path = self.folder / arrival.name
        try:
            return _is_seen(arrival, path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise CrodoboError(
                f"{path} cannot be looked at any more ({error.strerror}); put that right, then the same command goes on"
            ) from None

    def delete(self, arrival: Arrival) -> bool:
        """Remove a file that has its prediction; one that came under the same name since is left. Whether it was."""
        if not self.is_same(arrival):
            return False
        path = self.folder / arrival.name
        leaving = path.with_name(LEAVING + path.name)
        try:
            try:
                path.rename(leaving)  # whatever takes the name from now on is another file
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                leaving = path
            if not _is_seen(arrival, leaving.lstat()):
                _give_back(leaving, path)
                return False
            leaving.unlink()
        except OSError as error:
            raise CrodoboError(
                f"{path} has its prediction but cannot be deleted ({error.strerror}); make "
                "the inbox writable, then the same command goes on"
            ) from None
        return True

    def half_deleted(self) -> list[Arrival]:
        """Files that a crash has left between their prediction and their end."""
        pattern = f"{LEAVING}*"
        found = []
        for path in self.folder.rglob(pattern) if self.recursive else self.folder.glob(pattern):
            status = path.lstat()
            name = path.relative_to(self.folder).with_name(path.name.removeprefix(LEAVING))
            found.append(Arrival(status.st_mtime_ns, str(name), status.st_size))
        return found

    def settle(self, arrival: Arrival, *, predicted: bool) -> None:
        """Delete a file that was half deleted, or give it its name back if it has no prediction."""
        path = self.folder / arrival.name
        leaving = path.with_name(LEAVING + path.name)
        if predicted:
            leaving.unlink(missing_ok=True)
        else:
            _give_back(leaving, path)

    def put_away(self, arrival: Arrival, reason: str) -> bool:
        """Move a file to the quarantine, with the reason beside it; whether it was still there as it was seen."""
        if not self.is_same(arrival):
            return False
        try:
            self.quarantine.mkdir(parents=True, exist_ok=True)
            self._quarantined = _identity(self.quarantine.stat())
            place = self._free_place(arrival.name)
            beside = place.with_name(place.name + REASON)
            try:
                write_atomically(beside, os.fsencode(f"{arrival.name}: {reason}\n"))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise  # on a full disk the file is put away without its reason: the stream goes on
            if not self._can_move:
                self._given_up.add(arrival)
            elif not self._move(arrival, place):
                beside.unlink(missing_ok=True)
                return False
        except OSError as error:
            raise CrodoboError(
                f"{self.folder / arrival.name} cannot be moved to the quarantine {self.quarantine} "
                f"({error.strerror}); put that right, then the same command goes on"
            ) from None
        return True

    def _move(self, arrival: Arrival, place: Path) -> bool:
        try:
            (self.folder / arrival.name).rename(place)
        except FileNotFoundError:
            return False  # somebody else has taken it
        return True

    def _free_place(self, name: str) -> Path:
        """A path in the quarantine that no file has, and that is not the name of another file's reason."""
        flat = os.fsencode(name.replace("/", "_"))
        if flat.endswith(REASON.encode()):
            flat += b".file"
        stem, suffix = os.path.splitext(flat)
        if len(flat) > LONGEST:
            stem, suffix = stem[: LONGEST - 20], suffix[:20]
        number, place = 0, self.quarantine / os.fsdecode(stem + suffix)
        while os.path.lexists(place):
            number += 1
            place = self.quarantine / os.fsdecode(b"%s-%d%s" % (stem, number, suffix))
        return place

    def _walk(self, folder: Path, prefix: str) -> Iterator[Arrival]:
        try:
            entries = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise CrodoboError(
                f"{folder} cannot be read ({error.strerror}); put that right, then the same command goes on"
            ) from None
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
            usual = folder == self.folder and entry.name == QUARANTINE
            if self.recursive and stat.S_ISDIR(status.st_mode) and _identity(status) != self._quarantined and not usual:
                yield from self._walk(Path(entry.path), f"{prefix}{entry.name}/")


def is_being_written(descriptor: int) -> bool:
    """Whether some process has the file open to write, where the system tells: it then gives no read lease."""
    if not hasattr(fcntl, "F_SETLEASE"):
        return False
    try:
        # What a writer that comes just now is announced with; SIGIO, the usual one, would end the process.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN  # any other error: leases are not for this file or this disk
    return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _is_seen(arrival: Arrival, status: os.stat_result) -> bool:
    return (status.st_mtime_ns, status.st_size) == (arrival.modified, arrival.size)


def _give_back(leaving: Path, path: Path) -> None:
    """Let a file have its name again, or one like it if another file has come under that name."""
    number, place = 0, path
    while True:
        try:
            os.link(leaving, place, follow_symlinks=False)  # unlike a rename it takes nobody's place
        except FileExistsError:
            number += 1
            place = path.with_name(f"{path.stem}-{number}{path.suffix}")
        else:
            return leaving.unlink()
