"""The file of predictions: a CSV with whole rows only, which also records which images have been predicted."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from crodobo.errors import BadData, CrodoboError
from crodobo.inbox.arrivals import FIX_AND_RESTART, Arrival
from crodobo.storage.files import append_durably, sync_folder
from crodobo.storage.lock import try_lock

COLUMNS = ("file", "label", "confidence", "query", "time", "bytes", "modified")
FILE, QUERY, BYTES, MODIFIED = (COLUMNS.index(name) for name in ("file", "query", "bytes", "modified"))


class PredictionFile:
    """A CSV that only grows. It is created if needed; `columns` come after the usual ones.

    Opening it removes a row that a crash cut short: the row's image is still there and is predicted again. `file`,
    `bytes` and `modified` tell an image from a later one of the same name.
    """

    def __init__(self, path: Path, columns: tuple[str, ...] = ()) -> None:
        self.path = path
        self.columns = (*COLUMNS, *columns)
        self.rows = 0
        self.queries = 0  # the number of the last query with rows
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise _unusable(f"Predictions cannot be written to {path} ({error.strerror}).") from None

    def already_predicted(self, arrivals: list[Arrival]) -> set[Arrival]:
        """The arrivals that have a row."""
        wanted = set(arrivals)
        rows = (self._row(piece.record) for piece in _pieces(self.path)) if wanted else ()
        return {row[0] for row in rows if row and row[0] in wanted}

    def append(self, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        """Add rows: each is an arrival with the values of the other columns. All are on disk on return, or none is."""
        lines = [(file.name, *values[:4], str(file.size), str(file.modified), *values[4:]) for file, values in rows]
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                raise FileNotFoundError(2, "it was replaced by another file")
            self._write(_as_csv(lines))
        except OSError as error:
            problem = f"Predictions could not be written to {self.path} ({error.strerror})."
            raise CrodoboError(f"{problem} No image of this query was deleted.", FIX_AND_RESTART) from None
        self.rows += len(rows)

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._descriptor)

    def _prepare(self) -> None:
        """Lock the file, repair it, and write the header if it is new."""
        if not try_lock(self._descriptor):
            raise CrodoboError(f"Another process is writing to {self.path}.", "Wait for it, or choose another file.")
        self._repair()
        if os.fstat(self._descriptor).st_size == 0:
            self._write(_as_csv([self.columns]))
            with contextlib.suppress(OSError):
                sync_folder(self.path.parent)

    def _write(self, content: bytes) -> None:
        append_durably(self._descriptor, content)

    def _repair(self) -> None:
        """Check that the file is a file of predictions, and cut off an unfinished row. Refuse any other damage."""
        end = 0
        for number, piece in enumerate(_pieces(self.path)):
            if not piece.whole:
                self._check_torn(number, piece.content)
                break
            if number == 0:
                self._check_header(piece.record)
            elif row := self._row(piece.record):
                self.rows, self.queries = number, row[1]
            else:
                raise self._damaged(number)
            end += len(piece.content)
        if end < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)

    def _check_header(self, record: list[str]) -> None:
        if tuple(record[: len(COLUMNS)]) != COLUMNS:
            raise _unusable(f"{self.path} is not a file of predictions.")
        if tuple(record) != self.columns:
            columns = f"{', '.join(record)[:200]}, not {', '.join(self.columns)[:200]}"
            remedy = "Ask for probabilities as before, or choose another file."
            raise BadData(f"{self.path} has the columns {columns}.", remedy, settings=("probabilities", "predictions"))

    def _check_torn(self, number: int, content: bytes) -> None:
        """Refuse anything but the beginning of one row: after a lost quotation mark, many rows look like one."""
        if number == 0 and not _as_csv([self.columns]).startswith(content):
            raise _unusable(f"{self.path} is not a file of predictions.")
        if any(self._row(_record(line)) for line in content.splitlines(keepends=True)[1:] if line.endswith(b"\n")):
            raise self._damaged(number)

    def _damaged(self, number: int) -> BadData:
        return _unusable(f"Row {number} of {self.path} is damaged.", "Repair it, or choose another file.")

    def _row(self, record: list[str]) -> tuple[Arrival, int] | None:
        """The arrival and the query of a row; None for the header and for damaged rows."""
        if len(record) != len(self.columns) or "\0" in record[FILE]:  # a failing disk leaves zeros
            return None
        try:
            return Arrival(int(record[MODIFIED]), record[FILE], int(record[BYTES])), int(record[QUERY])
        except ValueError:
            return None


def _unusable(problem: str, remedy: str = "Choose another file.") -> BadData:
    return BadData(problem, remedy, settings=("predictions",))


class _Piece(NamedTuple):
    """One record as it is in the file. The last one may be unfinished."""

    content: bytes
    record: list[str]
    whole: bool = True


def _pieces(path: Path) -> Iterator[_Piece]:
    """A record ends with its line, unless a quotation mark is still open."""
    held: list[bytes] = []
    quotes = 0
    with path.open("rb") as file:
        for line in file:
            held.append(line)
            quotes += line.count(b'"')
            if quotes % 2 == 0 and line.endswith(b"\n"):
                content = b"".join(held)
                yield _Piece(content, _record(content))
                held, quotes = [], 0
    if held:
        yield _Piece(b"".join(held), [], whole=False)


def _record(content: bytes) -> list[str]:
    """The values of one record; empty if it is not CSV."""
    try:
        records = list(csv.reader(io.StringIO(os.fsdecode(content), newline=""), strict=True))
    except csv.Error:
        return []
    return records[0] if len(records) == 1 else []


def _as_csv(rows: Iterable[tuple[str, ...]]) -> bytes:
    """Rows as CSV lines. Python's writer does not quote carriage returns, and its reader then fails on them."""
    lines = (",".join(_quoted(value) for value in row) + "\n" for row in rows)
    return os.fsencode("".join(lines))  # a file name may hold bytes that are not text


def _quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value
