"""Pictures before they are decoded: files, rows of a table, or an array. Numbered, named, and told apart."""

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from crodobo.config import Fit
from crodobo.data.decode import decode, to_pixels
from crodobo.errors import BadImage

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Shape = tuple[int, int, int]


class Pictures(ABC):
    """A numbered collection of pictures that are read one at a time."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        """The pixels of a picture, brought to a shape; raises `BadImage` with its name and the reason."""

    @abstractmethod
    def stamp(self) -> str:
        """A digest that changes when the pictures do."""

    @abstractmethod
    def chosen(self, numbers: Sequence[int]) -> "Pictures":
        """Some of them, in that order."""

    def missing(self) -> list[str]:
        """Names of pictures that are not there."""
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
            raise BadImage(f"the image {path} cannot be used: {error}") from None
        except OSError as error:
            raise BadImage(f"the image {path} cannot be read ({error.strerror})") from None

    def stamp(self) -> str:
        """Of names, sizes and times: reading all content at each start would take as long as decoding it."""
        digest = hashlib.sha256()
        for name in self.names:
            try:
                status = (self.root / name).stat()
                digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(errors="surrogateescape"))
            except OSError:
                digest.update(f"{name}\0missing\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def chosen(self, numbers: Sequence[int]) -> "Files":
        return Files(self.root, [self.names[number] for number in numbers])

    def missing(self) -> list[str]:
        return [name for name in self.names if not (self.root / name).is_file()]


@dataclass(frozen=True)
class ArrayPictures(Pictures):
    """Grey pictures that lie in an array already, N×H×W or N×H×W×3, uint8."""

    array: np.ndarray
    name: str

    def __len__(self) -> int:
        return len(self.array)

    def read(self, number: int, shape: Shape, fit: Fit) -> np.ndarray:
        return to_pixels(Image.fromarray(self.array[number]), shape, fit)

    def stamp(self) -> str:
        return hashlib.sha256(repr(self.array.shape).encode() + self.array.tobytes()).hexdigest()

    def chosen(self, numbers: Sequence[int]) -> "ArrayPictures":
        return ArrayPictures(self.array[np.asarray(numbers, dtype=np.int64)], self.name)


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
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        content = _row_group(self.path, self.column, group)[row - int(self._starts[group])]
        content = content.get("bytes") if isinstance(content, dict) else content
        try:
            return decode(content or b"", shape, fit)
        except BadImage as error:
            raise BadImage(f"the image in row {row + 1} of {self.path} cannot be used: {error}") from None

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        metadata = _parquet(self.path).metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return np.cumsum([0, *sizes[:-1]])

    def stamp(self) -> str:
        status = self.path.stat()
        rows = hashlib.sha256(np.asarray(self.rows, dtype=np.int64).tobytes()).hexdigest()
        return f"{self.path.name}-{self.column}-{status.st_size}-{status.st_mtime_ns}-{rows}"

    def chosen(self, numbers: Sequence[int]) -> "ParquetPictures":
        return ParquetPictures(self.path, self.column, [self.rows[number] for number in numbers])


def _parquet(path: Path) -> "ParquetFile":
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path)


@functools.lru_cache(maxsize=2)
def _row_group(path: Path, column: str, group: int) -> list[bytes | dict[str, bytes | None] | None]:
    found: list[bytes | dict[str, bytes | None] | None] = (
        _parquet(path).read_row_group(group, columns=[column]).column(0).to_pylist()
    )
    return found
