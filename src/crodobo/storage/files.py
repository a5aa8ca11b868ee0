"""Replace files in one step, and append durably."""

import contextlib
import os
from functools import partial
from pathlib import Path


def write_atomically(path: Path, content: bytes | str, *, private: bool = False, within: int | None = None) -> None:
    """Replace a file in one step: after a crash at any moment it has its old content or the new one.

    A `private` file is readable by its owner alone. `within` is an open folder that the path starts from.
    """
    data = content.encode() if isinstance(content, str) else content
    unfinished = unfinished_name(path)
    try:
        _remove(unfinished, within)  # a file left by a crash could be open to others
        mode = 0o600 if private else 0o666
        with open(unfinished, "xb", opener=partial(os.open, mode=mode, dir_fd=within)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path, src_dir_fd=within, dst_dir_fd=within)
    except BaseException:
        _remove(unfinished, within)
        raise
    if within is None:
        sync_folder(path.parent)
    else:
        os.fsync(within)


def _remove(path: Path, within: int | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path, dir_fd=within)


def sync_folder(folder: Path) -> None:
    """Put a folder's file names on disk, so that a new file survives a crash."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append_durably(descriptor: int, content: bytes) -> None:
    """Append to an open file. When this returns, all of it is on disk; when it raises, nothing was added."""
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
    """The temporary file that becomes `path`. A kill while writing leaves it behind."""
    return path.with_name(f".{path.name}.unfinished")
