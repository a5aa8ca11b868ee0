"""Writing files whole or not at all, and one run to a folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crodobo.errors import CrodoboError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file in one step: after a crash at any moment it is the old one or the new one."""
    data = content.encode() if isinstance(content, str) else content
    unfinished = unfinished_name(path)
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def unfinished_name(path: Path) -> Path:
    """Where a file is written before it takes its place; what a kill in the middle leaves behind."""
    return path.with_name(f".{path.name}.unfinished")


@contextmanager
def sole_user(folder: Path, option: str = "--out") -> Iterator[None]:
    """Make the folder, see that it can be written to, and keep every other run out of it.

    `option` is what names the folder on the command line, for the sentences.
    """
    lock = folder / ".lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = lock.open("w")
    except OSError as error:
        raise CrodoboError(
            f"the folder {folder} cannot be written to ({error.strerror}); choose another with {option}"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CrodoboError(
                f"another run is writing to {folder}; wait for it, or choose another {option}"
            ) from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
