"""`crodobo data`: the presets, and whether a copy of their data is complete."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.data.presets import preset_names

Crodobo = Callable[..., tuple[int, str, str]]

PHOTOS = ("coat", "dress", "pullover", "shirt", "t-shirt", "trouser")


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (9, 9)).save(path)
    return path


@pytest.fixture
def clothes(tmp_path: Path) -> Path:
    """Fashion-MNIST with its real counts, in images of one pixel, and a photograph of each class."""
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    put_idx(folder, np.repeat(np.arange(10), 6000))
    for name in PHOTOS:
        put(tmp_path / f"clothing/{name}/1.jpg")
    return tmp_path


def put_idx(folder: Path, labels: np.ndarray) -> None:
    for name, array in (("images-idx3", labels[:, None, None]), ("labels-idx1", labels)):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes(), 1))


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_list_describes_every_preset(crodobo: Crodobo) -> None:
    status, out, errors = crodobo("data")
    assert (status, errors) == (0, "")
    for name in ("glyphs", *preset_names()):
        assert f"\n{name}  " in out
    assert out.count("  from: ") == out.count("  licence: ") == len(preset_names())
    assert "train/image_list.txt" in out
    assert "crodobo data check NAME FOLDER" in out


def test_a_complete_copy_passes(clothes: Path, crodobo: Crodobo) -> None:
    status, out, errors = crodobo("data", "check", "fashion-photos", clothes)
    assert (status, errors) == (0, "")
    assert "source: 36,000 images of 36,000" in out
    assert "target: 6 images" in out
    assert "trouser 6,000 6,000" in words(out)
    assert "fashion-photos is complete" in out


def test_source_and_target_may_be_in_separate_folders(clothes: Path, crodobo: Crodobo) -> None:
    apart = ("--source", clothes / "fashion-mnist", "--target", clothes / "clothing")
    assert crodobo("data", "check", "fashion-photos", *apart)[::2] == (0, "")


def test_wrong_counts_are_named(clothes: Path, crodobo: Crodobo) -> None:
    labels = np.repeat(np.arange(10), 6000)
    labels[0] = 1  # a T-shirt becomes a trouser
    put_idx(clothes / "fashion-mnist", labels)
    status, out, errors = crodobo("data", "check", "fashion-photos", clothes)
    assert status == 2
    assert "t-shirt has 5,999 images, 1 fewer than the known 6,000" in out
    assert "trouser has 6,001 images, 1 more than the known 6,000" in out
    assert errors == "error: fashion-photos has 2 problems; see above.\n"


def test_a_class_without_an_image_is_named(clothes: Path, crodobo: Crodobo) -> None:
    (clothes / "clothing/coat/1.jpg").unlink()
    status, out, errors = crodobo("data", "check", "fashion-photos", clothes)
    assert status == 2
    assert "  There is no image of coat.\n" in out
    assert "has 1 problem; see above." in errors


def test_images_of_unexpected_classes_are_named(tmp_path: Path, crodobo: Crodobo) -> None:
    for domain in ("art_painting", "photo"):
        put(tmp_path / domain / "dog/1.jpg")
        put(tmp_path / domain / "[red]unicorn/1.jpg")
    status, out, _ = crodobo("data", "check", "pacs/art-photo", tmp_path)
    assert status == 2
    assert "There are images of unexpected classes: [red]unicorn." in out
    assert "[red]unicorn 1 –" in words(out)
    assert "no image of elephant, giraffe, guitar, horse, house, person" in out
    assert "dog has 1 images, 188 fewer than the known 189" in out


def test_a_total_is_compared_where_classes_have_no_known_counts(tmp_path: Path, crodobo: Crodobo) -> None:
    for domain in ("amazon", "webcam"):
        put(tmp_path / domain / "images/bike/1.jpg")
    status, out, _ = crodobo("data", "check", "office-31/amazon-webcam", tmp_path)
    assert status == 2
    assert "source: 1 images of 2,817" in out
    assert "The total is 1, 2,816 fewer than the known 2,817" in out


def test_listed_images_that_are_missing_are_named(tmp_path: Path, crodobo: Crodobo) -> None:
    put(tmp_path / "train/aeroplane/0.png")
    (tmp_path / "train/image_list.txt").write_text("".join(f"aeroplane/{number}.png 0\n" for number in range(6)))
    status, out, _ = crodobo("data", "check", "paper/visda-c", tmp_path)
    assert status == 2
    assert "5 images are listed but missing: aeroplane/1.png, aeroplane/2.png, aeroplane/3.png and 2 more" in out
    assert "no image of bicycle, bus, car" in out
    assert f"There is no {tmp_path}/validation/image_list.txt" in out
    assert "target: 0 images of 55,388" in out


def test_decoding_finds_broken_images(clothes: Path, crodobo: Crodobo) -> None:
    path = clothes / "clothing/coat/1.jpg"
    os.truncate(path, 300)
    put_idx(clothes / "fashion-mnist", np.array([0, 1, 2, 3, 4, 6]))
    status, out, _ = crodobo("data", "check", "fashion-photos", clothes)
    assert "cannot be used" not in out
    status, out, _ = crodobo("data", "check", "fashion-photos", clothes, "--decode")
    assert status == 2
    assert f"The image {path} cannot be used: it is damaged" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["pacs/art-photo"],
            "error: The folder of the data is missing. Give it, or both domains. (see",
        ),
        (
            ["pacs/art-photo", "--source", "x"],
            "error: The folder of the data is missing. Give it, or both domains. (see",
        ),
        (
            ["pacs", "x"],
            "error: pacs does not name two domains of pacs, which are art, cartoon, photo, sketch. ",
        ),
        (["paper/visda", "x"], "error: There is no preset 'paper/visda'. Did you mean paper/visda-c?"),
        (["glyphs", "x"], "error: There is no preset 'glyphs'. Choose one of paper/camelyon17, "),
    ],
)
def test_a_wrong_argument_gives_one_sentence(arguments: list[str], sentence: str, crodobo: Crodobo) -> None:
    status, _, errors = crodobo("data", "check", *arguments)
    assert status == 2
    assert sentence in errors
    assert errors.count("\n") == 1


def test_missing_folders_are_named(tmp_path: Path, crodobo: Crodobo) -> None:
    status, out, _ = crodobo("data", "check", "pacs/art-photo", tmp_path / "nowhere")
    assert status == 2
    assert f"There is no {tmp_path}/nowhere/art_painting" in out
    assert f"There is no {tmp_path}/nowhere/photo" in out
