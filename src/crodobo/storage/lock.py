"""Locks on files and folders, so that only one process works with them at a time."""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crodobo.errors import CrodoboError

LOCK_FILE = ".lock"


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder until it is closed. Returns False if another process holds the lock.

    File systems without locks count as locked: there is nothing better to do on them.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Wait for a lock file's turn; it is created if needed and stays behind."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_folder(folder: Path, *, private: bool = False, settings: tuple[str, ...] = ()) -> Iterator[None]:
    """Create a folder if needed, check that it is writable, and keep every other process out of it.

    The lock file stays behind: if it were deleted, a process that waits for it and one that creates a new one would
    both hold a lock. A `private` folder becomes readable by its owner alone. Errors name the `settings`.
    """
    try:
        folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
        if private:
            close_to_others(folder, settings)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600 if private else 0o666)
    except OSError as error:
        problem = f"The folder {folder} is not writable ({error.strerror})."
        raise CrodoboError(problem, "Choose another one.", settings=settings) from error
    try:
        if not try_lock(descriptor):
            problem = f"Another process is writing to {folder}."
            raise CrodoboError(problem, "Wait for it, or choose another folder.", settings=settings)
        yield
    finally:
        os.close(descriptor)


def close_to_others(folder: Path, settings: tuple[str, ...] = ()) -> None:
    """Make a folder readable by its owner alone. A folder that is meant for all users, such as /tmp, is refused."""
    mode = folder.stat().st_mode
    if not mode & (stat.S_IRWXG | stat.S_IRWXO):
        return
    try:
        if mode & stat.S_ISVTX:
            raise PermissionError(errno.EPERM, "it is shared by all users")
        folder.chmod(stat.S_IRWXU)
    except PermissionError as error:
        problem = f"The folder {folder} cannot be closed to other users ({error.strerror})."
        raise CrodoboError(problem, "Choose a folder of your own.", settings=settings) from None
