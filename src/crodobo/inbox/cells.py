"""The CSV of predictions as bytes: records, and cells that survive hostile file names and spreadsheets."""

import csv
import io
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

BOM = b"\xef\xbb\xbf"  # spreadsheets write it in front of UTF-8
FORMULA = "=+-@＝＋－＠"  # a spreadsheet may execute a cell that begins with one of these
NUMBER = re.compile(r"(\d+)(?:ns)?|\d+(?:[.,]\d+)?E\+?\d+|\d+[.,]\d+", re.IGNORECASE)


class Piece(NamedTuple):
    """One record as it is in the file. The last one may be unfinished."""

    content: bytes
    record: list[str]
    whole: bool = True


def pieces(path: Path) -> Iterator[Piece]:
    """A record ends with its line, unless a quotation mark is still open."""
    held: list[bytes] = []
    quotes, mark = 0, BOM
    with path.open("rb") as file:
        for line in file:
            held.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0 and line.endswith(b"\n"):
                content = b"".join(held)
                yield Piece(content, parse(content.removeprefix(mark)))
                held, quotes, mark = [], 0, b""
    if held:
        yield Piece(b"".join(held), [], whole=False)


def parse(content: bytes) -> list[str]:
    """The values of one record; empty if it is not CSV."""
    try:
        records = list(csv.reader(io.StringIO(os.fsdecode(content), newline=""), strict=True))
    except csv.Error:
        return []
    return records[0] if len(records) == 1 else []


def as_csv(rows: Iterable[tuple[str, ...]]) -> bytes:
    """Rows as CSV lines. Python's writer does not quote carriage returns, and its reader then fails on them."""
    return "".join(",".join(_quoted(value) for value in row) + "\n" for row in rows).encode()


def _quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value


def escape(name: str) -> str:
    """A file name for a cell: some bytes as %XX, as in web addresses, so that the CSV is text and holds no formula.

    These are the percent sign itself, control characters, bytes that are not UTF-8, and a space or the beginning of a
    formula in the first place.

    >>> escape("a b.png"), escape("=1+1.png"), escape("100 %.png")
    ('a b.png', '%3D1+1.png', '100 %25.png')
    >>> escape(os.fsdecode(b"caf\\xe9.png"))
    'caf%E9.png'
    """
    text = os.fsencode(name).decode("utf-8", "surrogateescape")
    return "".join(_escaped(each) if _is_risky(each, place) else each for place, each in enumerate(text))


def _is_risky(character: str, place: int) -> bool:
    is_byte = "\udc80" <= character <= "\udcff"  # one that is not UTF-8
    return character in "%\x7f" or character < " " or is_byte or (place == 0 and character in f" {FORMULA}")


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def unescape(cell: str) -> str:
    """The file name of a cell.

    >>> unescape("%3D1+1.png")
    '=1+1.png'
    """
    return os.fsdecode(unquote_to_bytes(os.fsencode(cell)))


def read_number(cell: str) -> tuple[bool, int | None]:
    """Whether a cell holds a number, and which; None for one that a spreadsheet has rounded.

    >>> read_number("1790000000123456789ns"), read_number("1.79E+18"), read_number("many")
    ((True, 1790000000123456789), (True, None), (False, None))
    """
    found = NUMBER.fullmatch(cell.strip())
    return (True, int(found[1]) if found[1] else None) if found else (False, None)
