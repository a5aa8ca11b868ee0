"""The file of predictions: a CSV with whole rows only, which also records which images have been predicted."""

import contextlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from crodobo.errors import BadData, CrodoboError
from crodobo.inbox.arrivals import FIX_AND_RESTART
from crodobo.inbox.cells import as_csv, escape, parse, pieces, read_number, unescape
from crodobo.inbox.walk import Arrival
from crodobo.storage.files import append_durably, sync_folder
from crodobo.storage.lock import try_lock

COLUMNS = ("file", "label", "confidence", "query", "time", "bytes", "modified", "identity")
FILE, QUERY, BYTES, MODIFIED, IDENTITY = map(COLUMNS.index, ("file", "query", "bytes", "modified", "identity"))
INODE_AND_CHANGE = re.compile(r"i(\d+)c(\d+)")  # with letters it is text to a spreadsheet, which would round numbers


class _Row(NamedTuple):
    """What a row says of its file and its query. A number that a spreadsheet has rounded is None."""

    name: str
    size: int | None
    modified: int | None
    inode: int
    changed: int
    query: int

    def tells(self, arrival: Arrival) -> bool:
        """Whether the row is about this very file, and not about another one with its name, size and time."""
        return self.inode == arrival.inode and (self.changed == arrival.changed or 0 in (self.changed, arrival.changed))


class PredictionFile:
    """A CSV that only grows. It is created if needed; `columns` come after the usual ones.

    Opening it removes a row that a crash cut short: the row's image is still there and is predicted again. `file`,
    `bytes`, `modified` and `identity` tell an image from a later one of the same name. Only the owner can read the CSV.
    """

    def __init__(self, path: Path, columns: tuple[str, ...] = ()) -> None:
        self.path = path
        self.columns = (*COLUMNS, *columns)
        self.rows = 0
        self.rounded = 0  # rows in which a spreadsheet has rounded numbers, so that they no longer tell their file
        self.queries = 0  # the highest number of a query with rows
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                self._prepare()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise _unusable(f"Predictions cannot be written to {path} ({error.strerror}).") from None

    def already_predicted(self, arrivals: list[Arrival], *, exactly: bool = True) -> set[Arrival]:
        """The arrivals that have a row. Unless `exactly`, files with the name, size and time of a row count too."""
        wanted = {(each.name, each.size, each.modified): each for each in arrivals}
        found = set()
        for piece in pieces(self.path) if wanted else ():
            row = self._row(piece.record)
            arrival = wanted.get((row.name, row.size or -1, row.modified or -1)) if row else None
            if row and arrival and (row.tells(arrival) or not exactly):
                found.add(arrival)
        return found

    def append(self, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        """Add rows: each is an arrival with the values of the other columns. All are on disk on return, or none is."""
        lines = [(escape(file.name), *values[:4], *_facts(file), *values[4:]) for file, values in rows]
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                raise FileNotFoundError(2, "it was replaced by another file")
            self._write(as_csv(lines))
        except OSError as error:
            problem = f"Predictions could not be written to {self.path} ({error.strerror})."
            raise CrodoboError(f"{problem} No image of this query was deleted.", FIX_AND_RESTART) from None
        self.rows += len(rows)

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self._descriptor)

    def _prepare(self) -> None:
        """Lock the file, repair it, close it to others, and write the header if it is new."""
        if not try_lock(self._descriptor):
            raise CrodoboError(f"Another process is writing to {self.path}.", "Wait for it, or choose another file.")
        self._repair()
        with contextlib.suppress(OSError):  # a file of another user, or a disk without modes
            os.fchmod(self._descriptor, 0o600)
        if os.fstat(self._descriptor).st_size == 0:
            self._write(as_csv([self.columns]))
            with contextlib.suppress(OSError):
                sync_folder(self.path.parent)

    def _write(self, content: bytes) -> None:
        append_durably(self._descriptor, content)

    def _repair(self) -> None:
        """Check that the file is a file of predictions, and cut off an unfinished row. Refuse any other damage."""
        end = 0
        for number, piece in enumerate(pieces(self.path)):
            if not piece.whole:
                self._check_torn(number, piece.content)
                break
            if number == 0:
                self._check_header(piece.record)
            elif row := self._row(piece.record):
                self.rows, self.queries = number, max(self.queries, row.query)
                self.rounded += None in row
            else:
                raise self._damaged(number)
            end += len(piece.content)
        if end < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)

    def _check_header(self, record: list[str]) -> None:
        for mark in ";\t":
            if tuple(mark.join(record).split(mark))[: len(COLUMNS)] == COLUMNS != tuple(record[: len(COLUMNS)]):
                problem = f"{self.path} has semicolons or tabs between its values, as some spreadsheets write them."
                raise _unusable(problem, "Save it with commas, or choose another file.")
        if tuple(record[: len(COLUMNS)]) != COLUMNS:
            raise _unusable(f"{self.path} is not a file of predictions.")
        if tuple(record) != self.columns:
            columns = f"{', '.join(record)[:200]}, not {', '.join(self.columns)[:200]}"
            remedy = "Ask for probabilities as before, or choose another file."
            raise BadData(f"{self.path} has the columns {columns}.", remedy, settings=("probabilities", "predictions"))

    def _check_torn(self, number: int, content: bytes) -> None:
        """Refuse anything but the beginning of one row: after a lost quotation mark, many rows look like one."""
        if number == 0 and not as_csv([self.columns]).startswith(content):
            raise _unusable(f"{self.path} is not a file of predictions.")
        if any(self._row(parse(line)) for line in content.splitlines(keepends=True)[1:] if line.endswith(b"\n")):
            raise self._damaged(number)

    def _damaged(self, number: int) -> BadData:
        return _unusable(f"Row {number} of {self.path} is damaged.", "Repair it, or choose another file.")

    def _row(self, record: list[str]) -> _Row | None:
        """What a row says; None for the header and for damaged rows."""
        if len(record) != len(self.columns) or "\0" in record[FILE]:  # a failing disk leaves zeros
            return None
        found = [read_number(record[place]) for place in (BYTES, MODIFIED, QUERY)]
        identity = INODE_AND_CHANGE.fullmatch(record[IDENTITY])
        if not identity or not all(is_number for is_number, _ in found):
            return None
        (_, size), (_, modified), (_, query) = found
        inode, changed = map(int, identity.groups())
        return _Row(unescape(record[FILE]), size, modified, inode, changed, query) if query is not None else None


def _facts(file: Arrival) -> tuple[str, str, str]:
    """The columns that tell a file from others. With its unit, the time is text to a spreadsheet too."""
    return str(file.size), f"{file.modified}ns", f"i{file.inode}c{file.changed}"


def _unusable(problem: str, remedy: str = "Choose another file.") -> BadData:
    return BadData(problem, remedy, settings=("predictions",))
