"""Writing files whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes | str) -> None:
    """Replace a file in one step: after a crash at any moment it is the old one or the new one."""
    data = content.encode() if isinstance(content, str) else content
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
