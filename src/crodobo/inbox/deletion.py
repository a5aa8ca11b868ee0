"""Deleting a file in two steps, so that a newer file of the same name is never deleted in its place.

The file is renamed, checked, and then unlinked. A crash in between leaves it under the temporary name, where the next
start finds it.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from crodobo.errors import CrodoboError

PREFIX = ".crodobo-deleting-"  # of the temporary name


def delete(path: Path, is_same: Callable[[os.stat_result], bool]) -> bool:
    """Delete a file. Returns False, and keeps the file, if it is gone or `is_same` does not recognise it."""
    temporary = temporary_name(path)
    try:
        try:
            path.rename(temporary)  # from now on, a file that arrives under this name is a different one
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            temporary = path
        if not is_same(temporary.lstat()):
            restore(path, temporary)
            return False
        temporary.unlink()
    except OSError as error:
        problem = f"{path} has its prediction but cannot be deleted ({error.strerror})."
        raise CrodoboError(problem, "Make the inbox writable and start again.") from None
    return True


def half_deleted(folder: Path, *, recursive: bool) -> Iterator[Path]:
    """The original paths of files that a crash left between renaming and unlinking."""
    pattern = f"{PREFIX}*"
    for path in folder.rglob(pattern) if recursive else folder.glob(pattern):
        yield path.with_name(path.name.removeprefix(PREFIX))


def temporary_name(path: Path) -> Path:
    """The name of a file while it is being deleted."""
    return path.with_name(PREFIX + path.name)


def restore(path: Path, temporary: Path) -> None:
    """Give a file its name back, or a numbered one if another file has taken the name."""
    number, free = 0, path
    while True:
        try:
            os.link(temporary, free, follow_symlinks=False)  # unlike a rename, it replaces no other file
        except FileExistsError:
            number += 1
            free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        else:
            return temporary.unlink()
