"""Readers for the paper's data sets that are not plain folders, lists or tables."""

import csv
import io
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from crodobo.data.listing import Listing, read_listing, read_text
from crodobo.data.pictures import Files
from crodobo.errors import BadData

Reader = Callable[..., Listing]
AGAIN = "Download it again."
COMPARE = "Compare the folder with the layout of the preset."


def camelyon17(root: Path, centers: Sequence[str], split: str | None = None) -> Listing:
    """Read WILDS: `metadata.csv`, and patches whose names consist of its columns. The label is `tumor`."""
    names, labels = [], []
    for row in _rows(root / "metadata.csv", ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")):
        if row["center"] in centers and split in (None, row["split"]):
            case = f"patient_{row['patient']}_node_{row['node']}"
            names.append(f"patches/{case}/patch_{case}_x_{row['x_coord']}_y_{row['y_coord']}.png")
            labels.append(row["tumor"])
    return Listing(Files(root, names), labels, str(root))


def deepfashion(root: Path, partitions: Sequence[str]) -> Listing:
    """Read DeepFashion: lists of categories, images and partitions, each with two header lines."""
    notes = next((root / name for name in ("Anno_coarse", "Anno") if (root / name).is_dir()), root)
    categories = [" ".join(words[:-1]) for words in _table(notes / "list_category_cloth.txt")]
    wanted = set(partitions)
    partition = {words[0]: words[1] for words in _table(_first(root, "Eval/list_eval_partition.txt"))}
    names, labels = [], []
    path = notes / "list_category_img.txt"
    for words in _table(path):
        name, number = words[0], words[-1]
        if partition.get(name) in wanted:
            if not number.isdecimal() or not 1 <= int(number) <= len(categories):
                raise BadData(f"{path} gives {name} the category {number}, but there are {len(categories)}.", AGAIN)
            names.append(name)
            labels.append(categories[int(number) - 1])
    images = next((root / name for name in ("Img", ".", "img") if (root / name / "img").is_dir()), root / "Img")
    return Listing(Files(images, names), labels, str(root))


def covid_da(root: Path, lists: Sequence[str], keys: Sequence[Sequence[str]], folders: Sequence[str]) -> Listing:
    """Read COVID-DA: a pickled dictionary of lists of (image name, label), and folders of images.

    `lists`, `keys` and `folders` are alternatives, because the data set was published in several versions.
    """
    path = next((found for name in lists if (found := _first(root, name)).exists()), root / lists[0])
    content = _read_plain_pickle(path)
    where = [root / folder for folder in folders if (root / folder).is_dir()]
    if not where:
        raise BadData(f"{root} has none of the folders {', '.join(folders)}.", COMPARE)
    index = {file.name: str(file.relative_to(root)) for folder in where for file in sorted(folder.rglob("*.*"))}
    chosen = next((names for names in keys if all(name in content for name in names)), None)
    if chosen is None:
        raise BadData(f"{path} has no list {keys[0][0]}. It has {', '.join(map(str, content))}.", AGAIN)
    names, labels = [], []
    for key in chosen:
        if not isinstance(content[key], list | tuple):
            raise BadData(f"{key} in {path} is not a list.", AGAIN)
        for entry in content[key]:
            if not isinstance(entry, tuple | list) or len(entry) != 2:
                raise BadData(f"The entry {entry!r} in {key} of {path} is not a pair of image and label.", AGAIN)
            name = Path(entry[0].decode() if isinstance(entry[0], bytes) else str(entry[0])).name
            names.append(index.get(name, f"{folders[0]}/{name}"))
            labels.append(str(entry[1]))
    return Listing(Files(root, names), labels, str(path))


READERS: dict[str, Reader] = {
    "any": read_listing,
    "camelyon17": camelyon17,
    "deepfashion": deepfashion,
    "covid-da": covid_da,
}


def _first(root: Path, name: str) -> Path:
    """A file at its usual path, or in the root itself."""
    return next((path for path in (root / name, root / Path(name).name) if path.exists()), root / name)


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    with io.StringIO(read_text(path, COMPARE), newline="") as file:
        reader = csv.DictReader(file)
        if lacking := [name for name in columns if name not in (reader.fieldnames or ())]:
            raise BadData(f"{path} has no column {lacking[0]}. It has {', '.join(reader.fieldnames or ())}.", AGAIN)
        for number, row in enumerate(reader, start=2):
            if lacking := [name for name in columns if not row[name]]:
                raise BadData(f"Row {number} of {path} has no {lacking[0]}.", AGAIN)
            yield row


def _table(path: Path) -> list[list[str]]:
    """The rows of a list. Its first line is their number, the second a header."""
    lines = read_text(path, COMPARE).splitlines()
    rows = [line.split() for line in lines[2:] if line.strip()]
    if not lines or not lines[0].strip().isdecimal() or any(len(row) < 2 for row in rows):
        raise BadData(f"{path} does not consist of a number, a header, and lines of names and values.", AGAIN)
    if int(lines[0]) != len(rows):
        raise BadData(f"{path} has {len(rows)} rows, but its first line says {int(lines[0])}.", AGAIN)
    return rows


class _PlainUnpickler(pickle.Unpickler):
    """Loads lists, dictionaries, texts and numbers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it contains a {module}.{name}")


def _read_plain_pickle(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise BadData(f"There is no {path}.", COMPARE)
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file).load()
    except Exception as error:  # a damaged pickle can raise anything
        raise BadData(f"{path} cannot be read as lists of names and labels ({error}).", AGAIN) from None
    if not isinstance(content, dict):
        raise BadData(f"{path} does not contain named lists.", AGAIN)
    return content
