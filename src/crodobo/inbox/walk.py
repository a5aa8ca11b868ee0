"""Walking through the inbox: which entries are files to predict, and which are left alone, and why."""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from crodobo.inbox import deletion
from crodobo.inbox.folders import GONE, NO_LINK

UNFINISHED = (".part", ".partial", ".tmp", ".temp", ".crdownload", ".download", ".filepart", ".unfinished")
DEEPEST = 64  # folders inside each other; a deeper tree would need too many open folders

Left = Literal[
    "sub-folders",
    "hidden",
    "unfinished names",
    "links to folders",
    "pipes and devices",
    "unreadable folders",
    "read-only folders",
    "folders that are too deep",
]


@dataclass(frozen=True, order=True)
class Arrival:
    """A file as it was when it was seen. A later file of the same name is another arrival."""

    modified: int  # nanoseconds
    name: str  # its path below the inbox
    size: int
    device: int
    inode: int
    changed: int = field(compare=False)  # when its status changed, which nobody can set; 0 if that does not matter

    @classmethod
    def of(cls, name: str, status: os.stat_result, *, deletes: bool = True) -> "Arrival":
        """The arrival of this name and status.

        The status may change if the file is not deleted, and if it has other names: deleting one of them changes it.
        """
        changed = status.st_ctime_ns if deletes and status.st_nlink == 1 else 0
        return cls(status.st_mtime_ns, name, status.st_size, status.st_dev, status.st_ino, changed)

    def is_file(self, status: os.stat_result) -> bool:
        """Whether this is the status of the file, which may have been renamed since it was seen."""
        found = (status.st_mtime_ns, status.st_size, status.st_dev, status.st_ino)
        return found == (self.modified, self.size, self.device, self.inode)

    def is_unchanged(self, status: os.stat_result) -> bool:
        """Whether this is the status of the file as it was seen.

        A file that was written to and given its old time is not unchanged.
        """
        return self.is_file(status) and self.changed in (0, status.st_ctime_ns)


class Walk:
    """One walk through an open folder. `left` counts the entries that are left alone, by reason.

    `recursive` enters sub-folders, except those that `is_quarantine` recognises, and with `deletes` only those from
    which files can be deleted.
    """

    def __init__(self, *, recursive: bool, deletes: bool, is_quarantine: Callable[[str, os.stat_result], bool]) -> None:
        self.left: Counter[Left] = Counter()
        self._recursive, self._deletes, self._is_quarantine = recursive, deletes, is_quarantine

    def arrivals(self, folder: int) -> Iterator[Arrival]:
        """All files, without hidden files and files whose name says they are unfinished."""
        for name, status, is_folder in self._entries(folder, "", 0):
            if reason := why_left(os.path.basename(name)):
                self.left[reason] += 1
            elif stat.S_ISREG(status.st_mode) or (stat.S_ISLNK(status.st_mode) and not is_folder):
                yield Arrival.of(name, status, deletes=self._deletes)
            else:
                self.left["links to folders" if is_folder else "pipes and devices"] += 1

    def half_deleted(self, folder: int) -> Iterator[Arrival]:
        """Files that a crash left in the middle of their deletion, under their original names."""
        for name, status, _ in self._entries(folder, "", 0):
            head, base = os.path.split(name)
            if original := deletion.original_name(base, status):
                yield Arrival.of(os.path.join(head, original), status, deletes=False)  # it was renamed

    def _entries(self, folder: int, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result, bool]]:
        """Name, status and whether it leads to a folder, of every entry that is not a folder to enter or to skip."""
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            name = prefix + entry.name
            if not stat.S_ISDIR(status.st_mode) or why_left(entry.name):
                yield name, status, leads_to_folder(entry)
            elif not self._is_quarantine(name, status):
                yield from self._enter(folder, entry.name, f"{name}/", depth + 1)

    def _enter(self, folder: int, name: str, prefix: str, depth: int) -> Iterator[tuple[str, os.stat_result, bool]]:
        """The entries of a sub-folder, if it is to be entered."""
        if not self._recursive:
            self.left["sub-folders"] += 1
            return
        if depth > DEEPEST:
            self.left["folders that are too deep"] += 1
            return
        try:
            below = os.open(name, NO_LINK, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                self.left["unreadable folders"] += 1
            elif error.errno not in GONE:
                raise
            return
        try:
            if not os.access(".", os.X_OK, dir_fd=below):
                self.left["unreadable folders"] += 1
            elif self._deletes and not os.access(".", os.W_OK, dir_fd=below):
                self.left["read-only folders"] += 1
            else:
                yield from self._entries(below, prefix, depth)
        finally:
            os.close(below)


def why_left(name: str) -> Left | None:
    """The reason for which a file or folder of this name is not read, if there is one."""
    if name.startswith("."):
        return "hidden"
    return "unfinished names" if name.lower().endswith(UNFINISHED) else None


def leads_to_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or a link to one. A link to nowhere, or in a circle, is not."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def in_words(left: Mapping[Any, int]) -> str:
    """What is left alone, for people.

    >>> in_words({"sub-folders": 2, "hidden": 1})
    'sub-folders: 2, hidden: 1'
    """
    return ", ".join(f"{reason}: {number}" for reason, number in left.items())
