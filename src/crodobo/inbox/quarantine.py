"""The quarantine: a folder for files that cannot be decoded, each with the reason in a text file beside it."""

import errno
import itertools
import os
from pathlib import Path

from crodobo.errors import BadData
from crodobo.storage.files import write_atomically

USUAL_NAME = "quarantine"
REASON = ".reason.txt"
LONGEST = 200  # bytes of a file name in the quarantine, so that the name of its reason fits too


class Quarantine:
    """Where files go that cannot be decoded.

    It has to be on the disk of the inbox, because files are moved by renaming. With `keep_files` it may be on another
    disk, and then gets only the reasons.
    """

    def __init__(self, folder: Path, inbox: Path, *, keep_files: bool) -> None:
        self.folder = folder
        self._create()
        status = inbox.stat()
        if self.is_folder(status):
            raise _bad(f"The quarantine cannot be the inbox {inbox} itself.")
        same_disk = self._identity[0] == status.st_dev
        if not (keep_files or same_disk):
            raise _bad(f"The quarantine {folder} is on another disk than the inbox {inbox}.")
        self.moves_files = same_disk and os.access(inbox, os.W_OK)

    def is_folder(self, status: os.stat_result) -> bool:
        """Whether this is the status of the quarantine's own folder."""
        return (status.st_dev, status.st_ino) == self._identity

    def add(self, file: Path, name: str, reason: str) -> bool:
        """Write the reason and, if files are moved, move the file. Returns False if the file is gone."""
        self._create()
        destination = self._free_path(name)
        reason_file = destination.with_name(destination.name + REASON)
        try:
            write_atomically(reason_file, os.fsencode(f"{name}: {reason}\n"))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise  # on a full disk the file is moved without its reason, and the stream continues
        if self.moves_files:
            try:
                file.rename(destination)
            except FileNotFoundError:
                reason_file.unlink(missing_ok=True)
                return False
        return True

    def _create(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            status = self.folder.stat()
        except OSError as error:
            raise _bad(f"The quarantine {self.folder} cannot be created ({error.strerror}).") from None
        self._identity = status.st_dev, status.st_ino

    def _free_path(self, name: str) -> Path:
        """A path in the quarantine that is not in use and cannot be mistaken for another file's reason."""
        flat = os.fsencode(name.replace("/", "_"))
        if flat.endswith(REASON.encode()):
            flat += b".file"
        stem, suffix = os.path.splitext(flat)
        if len(flat) > LONGEST:
            stem, suffix = stem[: LONGEST - 20], suffix[:20]
        names = itertools.chain([stem + suffix], (b"%s-%d%s" % (stem, n, suffix) for n in itertools.count(1)))
        paths = (self.folder / os.fsdecode(name) for name in names)
        return next(path for path in paths if not os.path.lexists(path))


def _bad(problem: str) -> BadData:
    return BadData(problem, "Choose another folder, on the disk of the inbox.", settings=("quarantine",))
