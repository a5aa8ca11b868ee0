"""Open folders, and files in them by name, so that no link leads out of the inbox.

A path is looked up anew at every use, and a sender may put a link into it at any time. An open folder stays the same
folder. So files are read, renamed and deleted by their name in an open folder, and a folder is opened from the one
above it.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

NO_LINK = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # systems differ in the last two, for a link in place of a folder


@contextlib.contextmanager
def opened(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Open a folder by a path that the user has chosen; it may be a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def opened_below(folder: int, names: Sequence[str], *, create: bool = False) -> Iterator[int]:
    """Open a folder below an open one, step by step. Raises OSError with an errno of `GONE` if any step is a link.

    With `create`, missing folders are made, readable by their owner alone.
    """
    descriptor = os.dup(folder)
    try:
        for name in names:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            below = os.open(name, NO_LINK, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def status_of(name: str, folder: int) -> os.stat_result:
    """The status of a file in an open folder; of a link, that of the link itself."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def is_taken(name: str, folder: int) -> bool:
    """Whether an open folder has an entry of this name."""
    try:
        status_of(name, folder)
    except FileNotFoundError:
        return False
    return True


def move(name: str, folder: int, wanted: str, to: int) -> None:
    """Move a file to another name and folder, or to a numbered name if another file has the name."""
    stem, suffix = os.path.splitext(wanted)
    number, free = 0, wanted
    while True:
        try:
            # Unlike a rename, this replaces no other file.
            os.link(name, free, src_dir_fd=folder, dst_dir_fd=to, follow_symlinks=False)
        except FileExistsError:
            if os.path.samestat(status_of(name, folder), status_of(free, to)):  # a crash came before the line below
                return os.unlink(name, dir_fd=folder)
            number += 1
            free = f"{stem}-{number}{suffix}"
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK) or is_taken(free, to):
                raise
            return os.rename(name, free, src_dir_fd=folder, dst_dir_fd=to)  # a disk without hard links
        else:
            return os.unlink(name, dir_fd=folder)
