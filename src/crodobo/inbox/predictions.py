"""The file of predictions: appended to durably, whole rows only, and the memory of what has been predicted."""

import contextlib
import csv
import fcntl
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from crodobo.errors import BadData, CrodoboError
from crodobo.inbox.arrivals import Arrival
from crodobo.storage.files import append_durably, sync_folder

COLUMNS = ("file", "label", "confidence", "query", "time", "bytes", "modified")
FILE, QUERY, BYTES, MODIFIED = (COLUMNS.index(name) for name in ("file", "query", "bytes", "modified"))


class PredictionFile:
    """A CSV to which rows are added and from which none is ever taken.

    A row that a crash has cut short is removed when the file is opened: its image is still there and is predicted
    again. `file`, `bytes` and `modified` tell an image from one that comes later under the same name.

    Parameters
    ----------
    path
        The file; made with its folder if it is not there.
    columns
        Further columns, after the usual ones.
    """

    def __init__(self, path: Path, columns: tuple[str, ...] = ()) -> None:
        self.path = path
        self.columns = (*COLUMNS, *columns)
        self.rows = 0
        self.queries = 0  # the number of the last query that has rows
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise BadData(f"predictions cannot be written to {path} ({error.strerror}); name another file") from None
        try:
            self._take_for_oneself()
            self._repair()
            if os.fstat(self._descriptor).st_size == 0:
                self._write(_as_csv([self.columns]))
                with contextlib.suppress(OSError):
                    sync_folder(path.parent)
        except OSError as error:
            self.close()
            raise BadData(f"predictions cannot be written to {path} ({error.strerror}); name another file") from None
        except BaseException:
            self.close()
            raise

    def already_there(self, arrivals: list[Arrival]) -> set[Arrival]:
        """Those of the arrivals that have a row."""
        wanted = set(arrivals)
        if not wanted:
            return set()
        rows = (self._row(piece.record) for piece in _pieces(self.path))
        return {row.arrival for row in rows if row and row.arrival in wanted}

    def append(self, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        """Add rows, each an arrival with the values of the other columns; on disk when this returns, or none is."""
        lines = []
        for arrival, values in rows:
            label, confidence, query, moment, *more = values
            usual = (arrival.name, label, confidence, query, moment, str(arrival.size), str(arrival.modified))
            lines.append((*usual, *more))
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                raise FileNotFoundError(2, "it was replaced by another file")
            self._write(_as_csv(lines))
        except OSError as error:
            raise CrodoboError(
                f"predictions could not be written to {self.path} ({error.strerror}); no image of this query was "
                "deleted: put that right, then the same command goes on"
            ) from None
        self.rows += len(rows)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._descriptor)

    def _take_for_oneself(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CrodoboError(
                f"another process is writing to {self.path}; wait for it, or name another file"
            ) from None
        except OSError:
            pass  # a disk without locks

    def _write(self, content: bytes) -> None:
        append_durably(self._descriptor, content)

    def _repair(self) -> None:
        """See that the file is one of ours, and cut off what a crash has left of a row; any other damage is refused."""
        end = 0
        for number, piece in enumerate(_pieces(self.path)):
            if not piece.whole:
                self._check_torn(number, piece.content)
                break
            if number == 0:
                self._check_header(piece.record)
            elif row := self._row(piece.record):
                self.rows, self.queries = number, row.query
            else:
                self._refuse(number)
            end += len(piece.content)
        if end < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)

    def _check_header(self, record: list[str]) -> None:
        if tuple(record[: len(COLUMNS)]) != COLUMNS:
            raise BadData(f"{self.path} is no file of predictions; name another file")
        if tuple(record) != self.columns:
            raise BadData(
                f"{self.path} has the columns {', '.join(record)[:200]}, not {', '.join(self.columns)[:200]}; give "
                "--probabilities or not, as before, or name another file"
            )

    def _check_torn(self, number: int, content: bytes) -> None:
        """Refuse what is not the beginning of one row: a lost quotation mark, say, that seems to open a long name."""
        if number == 0 and not _as_csv([self.columns]).startswith(content):
            raise BadData(f"{self.path} is no file of predictions; name another file")
        if any(self._row(_record(line)) for line in content.splitlines(keepends=True)[1:] if line.endswith(b"\n")):
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        raise BadData(f"row {number} of {self.path} is damaged; put it right, or name another file")

    def _row(self, record: list[str]) -> "_Row | None":
        """What a record says; None for the header and for what is no row."""
        if len(record) != len(self.columns) or "\0" in record[FILE]:  # zeros: what a disk that failed has left
            return None
        try:
            return _Row(Arrival(int(record[MODIFIED]), record[FILE], int(record[BYTES])), int(record[QUERY]))
        except ValueError:
            return None


class _Row(NamedTuple):
    arrival: Arrival
    query: int


class _Piece(NamedTuple):
    """A record of a file as it stands there; the last one may not be whole."""

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
    """The values of one record; none if it is no CSV."""
    try:
        records = list(csv.reader(io.StringIO(os.fsdecode(content), newline=""), strict=True))
    except csv.Error:
        return []
    return records[0] if len(records) == 1 else []


def _as_csv(rows: Iterable[tuple[str, ...]]) -> bytes:
    """Rows as lines. Python's own writer leaves a carriage return without quotation marks, and cannot read it then."""
    lines = (",".join(_quoted(value) for value in row) + "\n" for row in rows)
    return os.fsencode("".join(lines))  # a file's name may hold bytes that are no text


def _quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"' if any(mark in value for mark in ',"\r\n') else value
