"""Pictures before they are decoded: files, rows of a table, or an array."""

import contextlib
import functools
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from crodobo.config import Fit
from crodobo.data.decode import decode, to_pixels
from crodobo.errors import BadImage

Shape = tuple[int, int, int]
EncodedImage = bytes | dict[str, bytes | None] | None
SAMPLED = 32  # files whose content goes into a stamp


class Pictures(ABC):
    """A numbered collection of pictures that are read one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        """Decode a picture to a shape. Raises `BadImage` with the picture's name and the reason as a sentence."""

    @abstractmethod
    def stamp(self) -> str:
        """A digest that changes when the pictures do."""

    @abstractmethod
    def select(self, numbers: Sequence[int]) -> "Pictures":
        """Some of the pictures, in this order."""

    def missing(self) -> list[str]:
        """Names of pictures that do not exist."""
        return []


@dataclass(frozen=True)
class Files(Pictures):
    """Image files under a folder."""

    root: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        path = self.root / self.names[number]
        try:
            return decode(path.read_bytes(), shape, fit)
        except BadImage as error:
            raise _broken(f"The image {path} cannot be used: {error}.") from None
        except OSError as error:
            raise _broken(f"The image {path} cannot be read ({error.strerror}).") from None

    def stamp(self) -> str:
        """Digest the folder, names, sizes and times, and some content: reading all would take as long as decoding."""
        digest = hashlib.sha256(os.fsencode(self.root.resolve()))
        for name in self.names[:: max(1, len(self.names) // SAMPLED)]:
            with contextlib.suppress(OSError), (self.root / name).open("rb") as file:
                digest.update(file.read(2**16))
        for name in self.names:
            try:
                status = (self.root / name).stat()
                digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
            except OSError:
                digest.update(f"{name}\0missing\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def select(self, numbers: Sequence[int]) -> "Files":
        return Files(self.root, [self.names[number] for number in numbers])

    def missing(self) -> list[str]:
        return [name for name in self.names if not (self.root / name).is_file()]


@dataclass(frozen=True)
class ArrayPictures(Pictures):
    """Grey pictures in an array, N×H×W, uint8."""

    array: np.ndarray

    def __len__(self) -> int:
        return len(self.array)

    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        return to_pixels(Image.fromarray(self.array[number]), shape, fit)

    def stamp(self) -> str:
        return hashlib.sha256(repr(self.array.shape).encode() + self.array.tobytes()).hexdigest()

    def select(self, numbers: Sequence[int]) -> "ArrayPictures":
        return ArrayPictures(self.array[np.asarray(numbers, dtype=np.int64)])


@dataclass(frozen=True)
class ParquetPictures(Pictures):
    """Encoded images in a column of a Parquet file, read a row group at a time."""

    path: Path
    column: str
    rows: Sequence[int]

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        row = self.rows[number]
        content = self._groups.row(row)
        content = content.get("bytes") if isinstance(content, dict) else content
        try:
            return decode(content or b"", shape, fit)
        except BadImage as error:
            raise _broken(f"The image in row {row + 1} of {self.path} cannot be used: {error}.") from None

    @functools.cached_property
    def _groups(self) -> "_RowGroups":
        return _RowGroups(self.path, self.column)

    def stamp(self) -> str:
        status = self.path.stat()
        rows = hashlib.sha256(np.asarray(self.rows, dtype=np.int64).tobytes()).hexdigest()
        return f"{self.path.resolve()}-{self.column}-{status.st_size}-{status.st_mtime_ns}-{rows}"

    def select(self, numbers: Sequence[int]) -> "ParquetPictures":
        return ParquetPictures(self.path, self.column, [self.rows[number] for number in numbers])


def _broken(problem: str) -> BadImage:
    return BadImage(problem, "Repair it, or leave out broken images.", settings=("skip_broken",))


class _RowGroups:
    """The row group of a Parquet column that was read last."""

    def __init__(self, path: Path, column: str) -> None:
        from pyarrow.parquet import ParquetFile

        self._file, self._column = ParquetFile(path), column
        metadata = self._file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._held: tuple[int, list[EncodedImage]] = (-1, [])
        self._lock = threading.Lock()

    def row(self, row: int) -> EncodedImage:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        with self._lock:
            if self._held[0] != group:
                self._held = (group, self._file.read_row_group(group, columns=[self._column]).column(0).to_pylist())
            return self._held[1][row - int(self._starts[group])]
