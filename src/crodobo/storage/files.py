"""Writing files whole or not at all, and appending durably."""

import os
from functools import partial
from pathlib import Path


def write_atomically(path: Path, content: bytes | str, *, private: bool = False) -> None:
    """Replace a file in one step: after a crash at any moment it is the old one or the new one.

    One that is `private` can be read by its owner alone.
    """
    data = content.encode() if isinstance(content, str) else content
    unfinished = unfinished_name(path)
    try:
        if private:  # what a crash has left could be open to others
            unfinished.unlink(missing_ok=True)
        with open(unfinished, "wb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """See that the names of a folder's files are on disk, those of new files too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_durably(descriptor: int, content: bytes) -> None:
    """Add to a file that is open for appending; on disk when this returns, or none of it is there."""
    before = os.fstat(descriptor).st_size
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, before)
        raise


def unfinished_name(path: Path) -> Path:
    """Where a file is written before it takes its place; what a kill in the middle leaves behind."""
    return path.with_name(f".{path.name}.unfinished")
