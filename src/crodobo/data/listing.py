"""Listings: the pictures of a domain with their labels, read from folders, lists, tables or IDX files."""

import csv
import gzip
import io
import re
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crodobo.config import Columns
from crodobo.data.extras import needs_extra
from crodobo.data.formats import SUFFIXES
from crodobo.data.pictures import ArrayPictures, Files, ParquetPictures, Pictures
from crodobo.errors import BadData

IMAGE_COLUMNS = ("image", "file", "path", "filename", "file_name", "filepath", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "category", "target", "y")
COLUMNS = ("source_columns", "target_columns")  # the settings


@dataclass(frozen=True)
class Listing:
    """Pictures, and the class name of each."""

    pictures: Pictures
    labels: Sequence[str]
    where: str

    def __post_init__(self) -> None:
        if not len(self.pictures):
            raise BadData(f"{self.where} has no images.", "Check the path.")
        if len(self.labels) != len(self.pictures):
            raise BadData(f"{self.where} has {len(self.pictures)} images and {len(self.labels)} labels.")

    @property
    def counts(self) -> dict[str, int]:
        """The number of pictures of each class."""
        return dict(sorted(Counter(self.labels).items()))

    def select(self, numbers: Sequence[int]) -> "Listing":
        """Some of the pictures, in this order."""
        return Listing(self.pictures.select(numbers), [self.labels[number] for number in numbers], self.where)


def read_listing(path: Path, columns: Columns | None = None) -> Listing:
    """Read a folder of class folders, IDX files, a CSV or Parquet table, or a list of `path label`."""
    if not path.exists():
        raise BadData(f"There is no {path}.", "Check the path.")
    if path.is_dir():
        return read_idx(path) if any(_idx_images(path)) else read_folder(path)
    if re.search(r"idx\d[-.]ubyte", path.name):
        return read_idx(path)
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return read_csv(path, columns)
    if suffix in (".parquet", ".pq"):
        return read_parquet(path, columns)
    if suffix in SUFFIXES:
        raise BadData(f"{path} is a single image.", "Give a folder of class folders, a list or a table.")
    return read_list(path)


def read_folder(path: Path) -> Listing:
    """Read a folder with one folder per class, which may have subfolders."""
    folders = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    if not folders:
        remedy = f"Arrange it like {path.name}/cat/1.jpg and {path.name}/dog/2.jpg."
        raise BadData(f"{path} has no class folders.", remedy)
    names = [str(file.relative_to(path)) for folder in folders for file in images_under(folder)]
    if not names:
        raise BadData(f"The class folders of {path} have no images ({', '.join(SUFFIXES[:3])} and others).")
    return Listing(Files(path, names), [Path(name).parts[0] for name in names], str(path))


def images_under(folder: Path) -> Iterator[Path]:
    """Image files by suffix, without hidden ones, in order of their names."""
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.suffix.lower() in SUFFIXES and not hidden and file.is_file():
            yield file


def read_list(path: Path) -> Listing:
    """Read a text file with a line `path label` for each image. Paths are relative to the file.

    Path and label are separated by a tab or, without one, by the last space.
    """
    names, labels = [], []
    for number, line in enumerate(map(str.strip, read_text(path).splitlines()), start=1):
        if not line:
            continue
        parts = line.rsplit("\t" if "\t" in line else None, maxsplit=1)
        if len(parts) < 2:
            raise BadData(f"Line {number} of {path} is {line[:60]!r}.", "Write a path and a label.")
        names.append(parts[0].strip())
        labels.append(parts[1].strip())
    return Listing(Files(path.parent, names), labels, str(path))


def read_csv(path: Path, columns: Columns | None = None) -> Listing:
    """Read a table with a column of paths, relative to the table, and a column of labels."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), delimiter=delimiter)
    try:
        image, label = choose_columns(path, list(reader.fieldnames or ()), columns)
        rows = [(row[image], (row[label] or "").strip()) for row in reader]
    except csv.Error as error:
        raise BadData(f"{path} cannot be read as a table ({error}).", "Save it as CSV again.") from None
    for number, row in enumerate(rows, start=2):
        if not all(row):
            raise _empty_cell(path, number, label if row[0] else image)
    return Listing(Files(path.parent, [row[0] for row in rows]), [row[1] for row in rows], str(path))


def read_parquet(path: Path, columns: Columns | None = None) -> Listing:
    """Read a table with a column of labels and a column of images: their paths, or the encoded images themselves."""
    with needs_extra("parquet", "Reading Parquet"):
        import pyarrow
        from pyarrow.parquet import ParquetFile
    try:
        file = ParquetFile(path)
        schema = file.schema_arrow
        image, label = choose_columns(path, schema.names, columns)
        labels = _texts(path, label, file.read(columns=[label]).column(0).to_pylist())
        kind = schema.field(image).type
        kind = kind.value_type if pyarrow.types.is_dictionary(kind) else kind
        if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
            names = _texts(path, image, file.read(columns=[image]).column(0).to_pylist())
            return Listing(Files(path.parent, names), labels, str(path))
    except (pyarrow.ArrowException, OSError) as error:
        raise BadData(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}).") from None
    if not (pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or pyarrow.types.is_struct(kind)):
        problem = f"The column {image} of {path} has no images: its type is {kind}."
        raise BadData(problem, "Name another one.", settings=COLUMNS)
    return Listing(ParquetPictures(path, image, range(len(labels))), labels, str(path))


def _texts(path: Path, column: str, values: list[object]) -> list[str]:
    if None in values:
        raise _empty_cell(path, values.index(None) + 1, column)
    return [str(value) for value in values]


def _empty_cell(path: Path, row: int, column: str) -> BadData:
    return BadData(f"Row {row} of {path} has no {column}.", "Fill it in, or remove the row.")


def choose_columns(path: Path, there: Sequence[str], named: Columns | None) -> Columns:
    """The columns of images and labels: the named ones, or the ones with a usual name."""
    image, label = named or (
        next((name for name in IMAGE_COLUMNS if name in there), ""),
        next((name for name in LABEL_COLUMNS if name in there), ""),
    )
    for wanted, content in ((image, "images"), (label, "labels")):
        if wanted not in there:
            missing = f"no column {wanted!r}" if wanted else f"no column with a usual name for {content}"
            found = f"its columns are {', '.join(there)}" if there else "it is empty"
            raise BadData(f"{path} has {missing}: {found}.", "Name the columns." if there else "", settings=COLUMNS)
    return image, label


def read_idx(path: Path) -> Listing:
    """Read IDX files, gzipped or not. The path is the file of images, or the folder (then its train part is read)."""
    images = path
    if path.is_dir():
        images = min(_idx_images(path), key=lambda file: (not file.name.startswith("train"), file.name))
    stem = images.name.removesuffix(".gz")
    for ending in ("", ".gz"):
        labels = images.with_name(re.sub(r"images([-.])idx3", r"labels\1idx1", stem) + ending)
        if labels.exists() and labels.name.removesuffix(".gz") != stem:
            break
    else:
        raise BadData(f"The labels of {images} are missing.", "Add the file …-labels-idx1-ubyte beside it.")
    array, numbers = read_idx_array(images), read_idx_array(labels)
    if array.ndim != 3 or numbers.ndim != 1 or len(array) != len(numbers):
        raise BadData(f"{images} and {labels.name} do not match: their shapes are {array.shape} and {numbers.shape}.")
    return Listing(ArrayPictures(array), [str(number) for number in numbers.tolist()], str(images))


def read_idx_array(path: Path) -> np.ndarray:
    """Read an IDX file of bytes."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        zeros, kind, dimensions = struct.unpack(">HBB", content[:4])
        shape = struct.unpack(f">{dimensions}I", content[4 : 4 + 4 * dimensions])
        if (zeros, kind) != (0, 8):
            raise ValueError("it does not contain bytes")
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error, zlib.error) as error:
        raise BadData(f"{path} cannot be read as IDX ({error}).", "Download it again.") from None


def _idx_images(folder: Path) -> Iterable[Path]:
    return [*folder.glob("*images?idx3*ubyte"), *folder.glob("*images?idx3*ubyte.gz")]


def read_text(path: Path, if_missing: str = "Check the path.") -> str:
    """Read a file of text. `if_missing` is the remedy if there is no such file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise BadData(f"There is no {path}.", if_missing) from None
    except OSError as error:
        raise BadData(f"{path} is not readable ({error.strerror}).", "Make it readable.") from None
    except UnicodeDecodeError:
        raise BadData(f"{path} is not a text file in UTF-8.", "Check the path, or convert the file.") from None
