"""Listings are read from every usual layout; the error about an unreadable one names the problem."""

import gzip
import io
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from crodobo.data.listing import Listing, read_listing
from crodobo.errors import BadData, BadImage

ONE = (1, 8, 8)


def picture(grey: int) -> bytes:
    """A PNG of one brightness, which identifies the picture."""
    file = io.BytesIO()
    Image.new("L", (8, 8), grey).save(file, "PNG")
    return file.getvalue()


def put(path: Path, grey: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture(grey))
    return path


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def put_idx(folder: Path, part: str, greys: list[int], labels: list[int], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pixels = np.array(greys, np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    ending, pack = (".gz", gzip.compress) if packed else ("", bytes)
    (folder / f"{part}-labels-idx1-ubyte{ending}").write_bytes(pack(idx(np.array(labels))))
    images = folder / f"{part}-images-idx3-ubyte{ending}"
    images.write_bytes(pack(idx(pixels)))
    return images


def put_parquet(path: Path, **columns: Any) -> Path:
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def seen(listing: Listing) -> list[tuple[int, str]]:
    """The brightness and the label of each picture."""
    greys = [int(listing.pictures.read(number, ONE, "squash").max()) for number in range(len(listing.pictures))]
    return list(zip(greys, listing.labels, strict=True))


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Images 10, 20 and 30 in a folder `img`."""
    for grey in (10, 20, 30):
        put(tmp_path / f"img/{grey}.png", grey)
    return tmp_path


def test_a_folder_of_class_folders(tmp_path: Path) -> None:
    put(tmp_path / "dog/b.PNG", 2)
    put(tmp_path / "cat/deeper/still/a.png", 1)
    put(tmp_path / "dog/a.png", 3)
    for left_out in ("loose.png", ".hidden/a.png", "dog/.a.png", "dog/.thumbs/a.png"):
        put(tmp_path / left_out, 99)
    (tmp_path / "dog/notes.txt").write_text("not an image")
    (tmp_path / "dog/folder.png").mkdir()
    (tmp_path / "empty").mkdir()
    assert seen(read_listing(tmp_path)) == [(1, "cat"), (3, "dog"), (2, "dog")]
    assert read_listing(tmp_path).counts == {"cat": 1, "dog": 2}


def test_file_names_that_are_not_text_are_read(tmp_path: Path) -> None:
    put(tmp_path / "été/ü ß.png", 1)
    odd = os.path.join(os.fsencode(tmp_path), b"b")
    os.mkdir(odd)
    with open(os.path.join(odd, b"\xff\xfe.png"), "wb") as file:
        file.write(picture(2))
    listing = read_listing(tmp_path)
    assert seen(listing) == [(2, "b"), (1, "été")]
    assert listing.pictures.stamp()


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("img/10.png 0\nimg/20.png 1\nimg/30.png 0\n", ["0", "1", "0"]),
        ("\n  img/10.png   0  \r\n\r\nimg/20.png 1\r\nimg/30.png 0", ["0", "1", "0"]),
        ("img/10.png\tbig cat\nimg/20.png\tdog\nimg/30.png\tbig cat\n", ["big cat", "dog", "big cat"]),
        ("\ufeffimg/10.png a\nimg/20.png b\nimg/30.png a\n", ["a", "b", "a"]),
    ],
    ids=["spaces", "loose", "tabs", "byte-order-mark"],
)
def test_a_list_of_paths_and_labels(three: Path, content: str, labels: list[str]) -> None:
    (three / "list.txt").write_bytes(content.encode())
    assert seen(read_listing(three / "list.txt")) == list(zip([10, 20, 30], labels, strict=True))


def test_paths_with_spaces_and_absolute_paths_in_a_list(tmp_path: Path) -> None:
    put(tmp_path / "my images/a b.png", 1)
    elsewhere = put(tmp_path / "elsewhere/c.png", 2)
    for between in (" ", "\t"):
        (tmp_path / "list").write_text(f"my images/a b.png{between}x\n{elsewhere}{between}y\n")
        assert seen(read_listing(tmp_path / "list")) == [(1, "x"), (2, "y")]


def test_a_list_named_like_an_idx_file_is_read_as_a_list(three: Path) -> None:
    (three / "train_idx1.txt").write_text("img/10.png a\nimg/20.png b\n")
    assert seen(read_listing(three / "train_idx1.txt")) == [(10, "a"), (20, "b")]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("t.csv", "file,label\nimg/10.png,a\nimg/20.png,b\n", None),
        ("t.csv", "\ufeffid,label,path\n1,a,img/10.png\n\n2,b,img/20.png\n", None),
        ("t.csv", 'kind,label,file\nx,a,"img/10.png"\ny,b,img/20.png\n', None),
        ("t.CSV", "what,where\na,img/10.png\nb,img/20.png\n", ("where", "what")),
        ("t.csv", "file,label,diagnosis\nimg/10.png,0,a\nimg/20.png,0,b\n", ("file", "diagnosis")),
        ("t.tsv", "file\tlabel\nimg/10.png\ta\nimg/20.png\tb\n", None),
    ],
)
def test_a_table_with_usual_or_named_columns(three: Path, name: str, content: str, columns: Any) -> None:
    (three / name).write_text(content)
    assert seen(read_listing(three / name, columns)) == [(10, "a"), (20, "b")]


def test_a_label_with_a_comma_is_one_label(three: Path) -> None:
    (three / "t.csv").write_text('image,class\nimg/10.png,"hat, red"\n')
    assert read_listing(three / "t.csv").labels == ["hat, red"]


@pytest.mark.parametrize("form", ["bytes", "large-bytes", "struct", "paths", "dictionary"])
def test_parquet_with_images_or_paths(three: Path, form: str) -> None:
    greys = [10, 20, 30]
    names = [f"img/{grey}.png" for grey in greys]
    images = {
        "bytes": [picture(grey) for grey in greys],
        "large-bytes": pyarrow.array([picture(grey) for grey in greys], pyarrow.large_binary()),
        "struct": [{"bytes": picture(grey), "path": None} for grey in greys],
        "paths": names,
        "dictionary": pyarrow.array(names).dictionary_encode(),
    }[form]
    listing = read_listing(put_parquet(three / "t.parquet", image=images, label=[5, 6, 5], other=[0, 0, 0]))
    assert seen(listing) == [(10, "5"), (20, "6"), (30, "5")]
    assert seen(listing.select([2, 0])) == [(30, "5"), (10, "5")]


def test_parquet_with_columns_that_are_named(tmp_path: Path) -> None:
    path = put_parquet(tmp_path / "t.pq", scan=[picture(1), picture(2)], finding=["a", "b"], label=[0, 0])
    assert seen(read_listing(path, ("scan", "finding"))) == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_by_their_folder_or_by_name(tmp_path: Path, packed: bool) -> None:
    test = put_idx(tmp_path, "t10k", [3], [9], packed)
    train = put_idx(tmp_path, "train", [1, 2], [7, 8], packed)
    assert seen(read_listing(tmp_path)) == seen(read_listing(train)) == [(1, "7"), (2, "8")]
    assert seen(read_listing(test)) == [(3, "9")]
    assert seen(read_listing(tmp_path).select([1])) == [(2, "8")]


def test_idx_files_with_dots_in_their_names_and_gzipped_labels(tmp_path: Path) -> None:
    put_idx(tmp_path, "train", [1, 2], [7, 8])
    (tmp_path / "train-images-idx3-ubyte").rename(tmp_path / "train-images.idx3-ubyte")
    labels = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / "train-labels.idx1-ubyte.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    assert seen(read_listing(tmp_path)) == [(1, "7"), (2, "8")]


def wrong_idx(folder: Path, content: bytes) -> Path:
    path = put_idx(folder, "train", [1, 2], [0, 1])
    path.write_bytes(content)
    return path


SOUND = idx(np.zeros((2, 8, 8)))
DAMAGED_GZIP = gzip.compress(SOUND)[:10] + b"\xff" * 20


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda p: p / "nowhere", "There is no {}/nowhere. Check the path."),
        (lambda p: put(p / "one.png", 1), "one.png is a single image. Give a folder"),
        (lambda p: put(p / "f/1.png", 1).parent, "{}/f has no class folders. Arrange it like f/cat/1.jpg"),
        (lambda p: (p / "f/cat").mkdir(parents=True) or p / "f", "The class folders of {}/f have no images (.jpg,"),
        (lambda p: written(p / "l.txt", "img/1.png 0\nonlyone\n"), "Line 2 of {}/l.txt is 'onlyone'. Write a path"),
        (lambda p: written(p / "l.txt", ""), "{}/l.txt has no images"),
        (lambda p: written(p / "l", b"\xff\xfe\x00\x80"), "{}/l is not a text file in UTF-8"),
        (lambda p: written(p / "t.csv", ""), "{}/t.csv has no column with a usual name for images: it is empty"),
        (lambda p: written(p / "t.csv", "a,b\n1,2\n"), "usual name for images: its columns are a, b. Name the columns"),
        (lambda p: written(p / "t.csv", "file,b\n1,2\n"), "usual name for labels: its columns are file, b"),
        (lambda p: written(p / "t.csv", "file,label\n"), "{}/t.csv has no images"),
        (lambda p: written(p / "t.csv", "file,label\na.png,0\nb.png\n"), "Row 3 of {}/t.csv has no label"),
        (lambda p: written(p / "t.csv", "file,label\n,0\n"), "Row 2 of {}/t.csv has no file"),
        (lambda p: written(p / "t.csv", b"file,label\n\xff,0\n"), "{}/t.csv is not a text file in UTF-8"),
        (lambda p: (p / "d.csv").mkdir() or p / "d.csv", "d.csv has no class folders"),
        (lambda p: written(p / "t.parquet", "no table"), "{}/t.parquet cannot be read as Parquet"),
        (lambda p: written(p / "t.parquet", ""), "{}/t.parquet cannot be read as Parquet"),
        (lambda p: put_parquet(p / "t.pq", a=["x"], b=[0]), "usual name for images: its columns are a, b"),
        (lambda p: put_parquet(p / "t.pq", image=[1], label=[0]), "The column image of {}/t.pq has no images"),
        (lambda p: put_parquet(p / "t.pq", image=[b"", b""], label=[0, None]), "Row 2 of {}/t.pq has no label"),
        (lambda p: put_parquet(p / "t.pq", image=["a", None], label=[0, 1]), "Row 2 of {}/t.pq has no image"),
        (lambda p: wrong_idx(p, SOUND[:-1]), "train-images-idx3-ubyte cannot be read as IDX"),
        (lambda p: wrong_idx(p, b""), "train-images-idx3-ubyte cannot be read as IDX"),
        (lambda p: wrong_idx(p, b"\0\0\x0d" + SOUND[3:]), "it does not contain bytes"),
        (lambda p: wrong_idx(p, gzip.compress(SOUND)[:-9]), "cannot be read as IDX (Compressed file ended"),
        (lambda p: wrong_idx(p, DAMAGED_GZIP), "cannot be read as IDX (Error -3 while decompressing data"),
        (lambda p: wrong_idx(p, idx(np.zeros((3, 8, 8)))), "do not match: their shapes are (3, 8, 8) and (2,)"),
        (lambda p: wrong_idx(p, idx(np.zeros((2, 8)))), "do not match: their shapes are (2, 8) and (2,)"),
        (
            lambda p: (put_idx(p, "train", [1], [0]), (p / "train-labels-idx1-ubyte").unlink()) and p,
            "The labels of {}/train-images-idx3-ubyte are missing",
        ),
    ],
)
def test_an_unreadable_path_is_an_error(tmp_path: Path, make: Any, sentence: str) -> None:
    path = make(tmp_path)
    with pytest.raises(BadData) as raised:
        read_listing(path)
    assert sentence.format(tmp_path) in str(raised.value)
    assert "\n" not in str(raised.value)


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_missing_columns_are_an_error(three: Path) -> None:
    (three / "t.csv").write_text("file,label\nimg/10.png,a\n")
    with pytest.raises(BadData, match="no column 'scan': its columns are file, label"):
        read_listing(three / "t.csv", ("scan", "label"))


def test_errors_about_missing_and_broken_pictures_name_them(three: Path) -> None:
    (three / "img/20.png").write_bytes(picture(20)[:48])
    (three / "list.txt").write_text("img/10.png a\nimg/20.png b\nimg/gone.png b\nimg a\n")
    pictures = read_listing(three / "list.txt").pictures
    assert pictures.missing() == ["img/gone.png", "img"]
    for number, sentence in (
        (1, "img/20.png cannot be used: it is damaged"),
        (2, "img/gone.png cannot be read (No such"),
    ):
        with pytest.raises(BadImage) as raised:
            pictures.read(number, ONE, "squash")
        assert sentence in str(raised.value)
    rows = read_listing(put_parquet(three / "t.pq", image=[picture(1), b"no"], label=[0, 1])).pictures
    with pytest.raises(BadImage, match=r"The image in row 2 of .*t.pq cannot be used: it is not an image"):
        rows.read(1, ONE, "squash")
    empty = read_listing(put_parquet(three / "u.pq", image=[picture(1), None], label=[0, 1])).pictures
    with pytest.raises(BadImage, match=r"row 2 of .*u.pq cannot be used: it is empty"):
        empty.read(1, ONE, "squash")


@pytest.mark.parametrize("form", ["folder", "parquet", "idx"])
def test_the_stamp_changes_when_the_pictures_do(tmp_path: Path, form: str) -> None:
    def make(grey: int) -> str:
        if form == "folder":
            put(tmp_path / "a/1.png", 1)
            os.utime(put(tmp_path / "a/2.png", grey), ns=(grey, grey))
            path = tmp_path
        elif form == "parquet":
            path = put_parquet(tmp_path / "t.pq", image=[picture(1), picture(grey)], label=[0, 1])
            os.utime(path, ns=(grey, grey))
        else:
            path = put_idx(tmp_path, "train", [1, grey], [0, 1])
        os.utime(tmp_path / "a/1.png", ns=(1, 1)) if form == "folder" else None
        whole = read_listing(path).pictures
        assert whole.stamp() == read_listing(path).pictures.stamp()
        assert len({whole.stamp(), whole.select([0]).stamp(), whole.select([1, 0]).stamp()}) == 3
        return whole.stamp()

    assert make(5) == make(5)
    assert make(5) != make(6)
