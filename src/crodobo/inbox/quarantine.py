"""The quarantine: a folder for files that cannot be decoded, each with the reason in a text file beside it."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from crodobo.errors import BadData
from crodobo.inbox.folders import GONE, is_taken, move, opened, opened_below, status_of
from crodobo.inbox.walk import Arrival
from crodobo.storage.files import write_atomically

USUAL_NAME = "quarantine"
REASON = ".reason.txt"
LONGEST = 200  # bytes of a file name in the quarantine, so that the name of its reason fits too


class Quarantine:
    """Where files go that cannot be decoded.

    It has to be on the disk of the inbox, because files are moved by renaming. With `keep_files` it may be on another
    disk, and then gets only the reasons. A quarantine in the inbox cannot be a link, which a sender could have made.
    """

    def __init__(self, folder: Path, inbox: Path, *, keep_files: bool) -> None:
        self.folder, self._inbox = folder, inbox
        self._below = names_below(folder, inbox)
        status = inbox.stat()
        with self._opened():
            if self.is_folder(status):
                raise _bad(f"The quarantine cannot be the inbox {inbox} itself.")
        same_disk = self._identity[0] == status.st_dev
        if not (keep_files or same_disk):
            raise _bad(f"The quarantine {folder} is on another disk than the inbox {inbox}.")
        self.moves_files = same_disk and os.access(inbox, os.W_OK)

    def is_folder(self, status: os.stat_result) -> bool:
        """Whether this is the status of the quarantine's own folder."""
        return (status.st_dev, status.st_ino) == self._identity

    def add(self, folder: int, arrival: Arrival, reason: str) -> bool:
        """Write the reason and, if files are moved, move the file from its open folder.

        Returns False if the file is gone or a newer one has its name.
        """
        name = os.path.basename(arrival.name)
        with self._opened() as quarantine:
            free = free_name(arrival.name, quarantine)
            reason_file = free + REASON
            try:
                write_atomically(Path(reason_file), os.fsencode(f"{arrival.name}: {reason}\n"), within=quarantine)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise  # on a full disk the file is moved without its reason, and the stream continues
            if not self.moves_files:
                return True
            with contextlib.suppress(FileNotFoundError):
                os.rename(name, free, src_dir_fd=folder, dst_dir_fd=quarantine)
                if arrival.is_file(status_of(free, quarantine)):
                    return True
                move(free, quarantine, name, folder)  # it took the name at the last moment
            with contextlib.suppress(FileNotFoundError):
                os.unlink(reason_file, dir_fd=quarantine)
            return False

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """The quarantine as an open folder. It is created if it does not exist."""
        with contextlib.ExitStack() as stack:
            try:
                if self._below is None:
                    self.folder.mkdir(parents=True, exist_ok=True)
                    descriptor = stack.enter_context(opened(self.folder))
                else:
                    inbox = stack.enter_context(opened(self._inbox))
                    descriptor = stack.enter_context(opened_below(inbox, self._below, create=True))
            except OSError as error:
                reason = "it is a file or a link" if self._below and error.errno in GONE else error.strerror
                raise _bad(f"The quarantine {self.folder} cannot be created ({reason}).") from None
            status = os.fstat(descriptor)
            self._identity = status.st_dev, status.st_ino
            yield descriptor


def names_below(folder: Path, inbox: Path) -> list[str] | None:
    """The names on the way from the inbox to a folder in it; None for a folder elsewhere."""
    status, path = inbox.stat(), Path(os.path.abspath(folder))
    for parent in (path, *path.parents):
        with contextlib.suppress(OSError):
            if os.path.samestat(parent.stat(), status):
                return list(path.relative_to(parent).parts)
    return None


def free_name(name: str, folder: int) -> str:
    """A name in the quarantine that is not in use and cannot be mistaken for another file's reason."""
    flat = os.fsencode(name.replace("/", "_"))
    if flat.endswith(REASON.encode()):
        flat += b".file"
    stem, suffix = os.path.splitext(flat)
    if len(flat) > LONGEST:
        stem, suffix = stem[: LONGEST - 20], suffix[:20]
    names = itertools.chain([stem + suffix], (b"%s-%d%s" % (stem, n, suffix) for n in itertools.count(1)))
    return next(free for free in map(os.fsdecode, names) if not is_taken(free, folder))


def _bad(problem: str) -> BadData:
    return BadData(problem, "Choose another folder, on the disk of the inbox.", settings=("quarantine",))
