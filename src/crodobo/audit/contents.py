"""The contents of a file: its bytes, the members of archives, and base64 in text."""

import base64
import gzip
import io
import mmap
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO

Content = bytes | mmap.mmap
UNPACKING_ERRORS = (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)
LARGEST = 512 * 2**20  # bytes of an archive or a member; larger ones are reported and skipped
DEPTH = 3  # levels of archives in archives
BASE64 = re.compile(rb"[A-Za-z0-9+/]{64,}={0,2}")


def contents(
    name: str, content: Content, skipped: Callable[[str], None], depth: int = 0
) -> Iterator[tuple[str, Content]]:
    """The content itself and everything packed in it, with names. Calls `skipped` for anything it cannot unpack."""
    yield name, content
    for member, unpacked in _members(name, content, skipped):
        if depth == DEPTH:
            skipped(f"{name} is packed more than {DEPTH} times and was not unpacked further.")
            return
        yield from contents(member, unpacked, skipped, depth + 1)


def _members(name: str, content: Content, skipped: Callable[[str], None]) -> Iterator[tuple[str, bytes]]:
    if content[:2] in (b"PK", b"\x1f\x8b"):
        try:
            yield from _unpacked(name, content)
        except UNPACKING_ERRORS as error:
            skipped(f"{name} was not unpacked completely ({str(error) or type(error).__name__}).")
    else:
        for number, match in enumerate(BASE64.finditer(content), start=1):
            text = match[0].rstrip(b"=")
            yield f"{name}, base64 {number}", base64.b64decode(text[: len(text) - (len(text) % 4 == 1)] + b"==")


def _unpacked(name: str, content: Content) -> Iterator[tuple[str, bytes]]:
    if len(content) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST // 2**20} MB")
    if content[:2] != b"PK":
        with gzip.open(io.BytesIO(content)) as file:
            yield f"{name}, unpacked", _read(file)
        return
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                yield f"{name}, {member.filename}", _read(file)


def _read(file: IO[bytes] | gzip.GzipFile) -> bytes:
    unpacked = file.read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST // 2**20} MB unpacked")
    return unpacked
