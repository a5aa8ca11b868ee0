"""A file in memory that is read without a copy of the whole."""

import io
import os
from typing import IO, cast


class MemoryFile(io.RawIOBase):
    """Reads from memory that belongs to somebody else.

    >>> file = MemoryFile(memoryview(b"the quick brown fox"))
    >>> file.read(4), file.seek(-3, os.SEEK_END), file.read()
    (b'the ', 16, b'fox')
    """

    def __init__(self, content: memoryview) -> None:
        self._content, self._place = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._content) if size is None or size < 0 else self._place + size
        piece = bytes(self._content[self._place : end])
        self._place += len(piece)
        return piece

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: len(self._content)}[whence]
        self._place = max(0, start + offset)
        return self._place


def open_memory(content: bytes | memoryview) -> IO[bytes]:
    """A file in memory. Bytes belong to the caller alone, so they need no copy either."""
    return io.BytesIO(content) if isinstance(content, bytes) else cast(IO[bytes], MemoryFile(content))
