"""The file of predictions: appended to durably, whole rows only, and the memory of what has been predicted."""

import contextlib
import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path

from crodobo.errors import BadData, CrodoboError
from crodobo.inbox.arrivals import Arrival

COLUMNS = ("file", "label", "confidence", "query", "time", "bytes", "modified")


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
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists() or path.stat().st_size == 0
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if not new:
                self._repair()
            if new or os.fstat(self._descriptor).st_size == 0:
                self._write(_as_csv([self.columns]))
                with contextlib.suppress(OSError):
                    folder = os.open(path.parent, os.O_RDONLY)
                    os.fsync(folder)
                    os.close(folder)
        except OSError as error:
            raise BadData(f"predictions cannot be written to {path} ({error.strerror}); name another file") from None

    def already_there(self, arrivals: list[Arrival]) -> set[Arrival]:
        """Those of the arrivals that have a row."""
        wanted = set(arrivals)
        return {arrival for arrival in self._arrivals() if arrival in wanted} if wanted else set()

    def append(self, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        """Add rows, each an arrival with the values of the other columns; on disk when this returns, or none is."""
        lines = []
        for arrival, values in rows:
            label, confidence, query, moment, *more = values
            usual = (arrival.name, label, confidence, query, moment, str(arrival.size), str(arrival.modified))
            lines.append((*usual, *more))
        try:
            self._write(_as_csv(lines))
        except OSError as error:
            raise CrodoboError(
                f"predictions could not be written to {self.path} ({error.strerror}); no image of this query was "
                "deleted: make room, then the same command goes on"
            ) from None
        self.rows += len(rows)

    def close(self) -> None:
        """Let the file go."""
        os.close(self._descriptor)

    def _write(self, content: bytes) -> None:
        before = os.fstat(self._descriptor).st_size
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._descriptor, left) :]
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, before)
            raise

    def _repair(self) -> None:
        """See that the file is one of ours, and cut off what a crash has left of a row."""
        end, torn = 0, None
        for number, (record, after) in enumerate(_records(self.path)):
            if number == 0 and tuple(record) != self.columns:
                raise BadData(
                    f"{self.path} has the columns {', '.join(record)[:200]}, not {', '.join(self.columns)[:200]}; name "
                    "another file for the predictions"
                )
            if torn:
                raise BadData(f"row {torn} of {self.path} is damaged; put it right, or name another file")
            if len(record) == len(self.columns):
                self.rows, end = number, after
            else:
                torn = number
        if end < os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, end)
            os.fsync(self._descriptor)

    def _arrivals(self) -> Iterator[Arrival]:
        place = {name: self.columns.index(name) for name in ("file", "bytes", "modified")}
        for number, (record, _) in enumerate(_records(self.path)):
            if number and len(record) == len(self.columns):
                yield Arrival(int(record[place["modified"]]), record[place["file"]], int(record[place["bytes"]]))


def _records(path: Path) -> Iterator[tuple[list[str], int]]:
    """Each whole record with where it ends. A record ends with its line, unless a quotation mark is still open."""
    held, end = b"", 0
    with path.open("rb") as file:
        for line in file:
            held += line
            end += len(line)
            if held.count(b'"') % 2 == 0 and held.endswith(b"\n"):
                try:
                    yield next(csv.reader(io.StringIO(os.fsdecode(held), newline=""), strict=True), []), end
                except csv.Error:
                    yield [], end  # no record of ours
                held = b""


def _as_csv(rows: list[tuple[str, ...]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return os.fsencode(text.getvalue())  # a file's name may hold bytes that are no text
