"""Deleting a file in two steps, so that a newer file of the same name is never deleted in its place.

The file is renamed, checked, and then unlinked. A crash in between leaves it under the temporary name, where the next
start finds it.
"""

import errno
import os
import stat
from collections.abc import Callable

from crodobo.inbox.folders import move, status_of

PREFIX = ".crodobo-deleting-"  # of the temporary name


def delete(name: str, folder: int, is_same: Callable[[os.stat_result], bool]) -> os.stat_result | None:
    """Delete a file in an open folder, and return its last status.

    Returns None, and keeps the file, if it is gone or `is_same` does not recognise it.
    """
    temporary = PREFIX + name
    try:
        os.rename(name, temporary, src_dir_fd=folder, dst_dir_fd=folder)  # a file that arrives now is a different one
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        temporary = name
    status = status_of(temporary, folder)
    if not is_same(status):
        if temporary != name:
            restore(name, folder)
        return None
    os.unlink(temporary, dir_fd=folder)
    return status


def restore(name: str, folder: int) -> None:
    """Give a file that is being deleted its name back, or a numbered one if another file has taken the name."""
    move(PREFIX + name, folder, name, folder)


def original_name(name: str, status: os.stat_result) -> str | None:
    """The name that a half-deleted file had; None for anything that `delete` cannot have left."""
    original = name.removeprefix(PREFIX)
    is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
    return original if is_file and original not in (name, "", ".", "..") else None
