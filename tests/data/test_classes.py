"""Classes of two domains get one set of names, or the error lists both sets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from crodobo.config import Classes
from crodobo.data.classes import common_names, read_classes, rename
from crodobo.data.listing import Listing
from crodobo.data.pictures import ArrayPictures
from crodobo.errors import BadData, CrodoboError


def listing(*labels: str) -> Listing:
    """Pictures that carry their number as brightness."""
    pixels = np.arange(len(labels), dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2)
    return Listing(ArrayPictures(pixels), list(labels), "the/place")


def seen(found: Listing) -> list[tuple[int, str]]:
    greys = [int(found.pictures.read(number, (1, 8, 8), "squash").max()) for number in range(len(found.pictures))]
    return list(zip(greys, found.labels, strict=True))


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    def write(content: str) -> Path:
        path = tmp_path / "classes.toml"
        path.write_text(content)
        return path

    return write


def test_a_file_maps_merges_and_drops(file: Callable[[str], Path]) -> None:
    classes = read_classes(
        file(
            'names = ["pet", "bird"]\n[source]\ncat = "pet"\ndog = "pet"\nowl = "bird"\nufo = false\n'
            '[target]\n0 = "pet"'
        )
    )
    assert classes.names == ("pet", "bird")
    found = rename(listing("cat", "ufo", "dog", "owl"), classes.source, "source")
    assert seen(found) == [(0, "pet"), (2, "pet"), (3, "bird")]
    assert seen(rename(listing("0", "bird"), classes.target, "target")) == [(0, "pet"), (1, "bird")]


def test_a_star_stands_for_everything_else(file: Callable[[str], Path]) -> None:
    dropped = read_classes(file('[source]\ncat = "pet"\n"*" = false')).source
    assert seen(rename(listing("owl", "cat", "dog"), dropped, "source")) == [(1, "pet")]
    merged = read_classes(file('[target]\ncat = "cat"\n"*" = "other"')).target
    assert rename(listing("owl", "cat", "dog"), merged, "target").labels == ["other", "cat", "other"]


def test_numbers_may_be_common_names(file: Callable[[str], Path]) -> None:
    assert read_classes(file("[source]\nzero = 0\none = 1")).source == {"zero": "0", "one": "1"}


def test_without_a_file_nothing_is_renamed() -> None:
    found = listing("b", "a")
    assert rename(found, Classes().source, "source").labels == ["b", "a"]


def test_an_unknown_class_in_a_file_is_an_error() -> None:
    with pytest.raises(BadData) as raised:
        rename(listing("cat", "dog"), {"cats": "pet", "dog": "pet"}, "target")
    assert (
        str(raised.value) == "The file of classes names cats in [target], but the/place has cat, dog. Correct the file."
    )
    assert rename(listing("dog"), {"cats": "pet", "dog": "pet"}, "target", strict=False).labels == ["pet"]


def test_dropping_everything_is_refused() -> None:
    with pytest.raises(BadData, match="drops every class of the/place, which has 2, 10, cat"):
        rename(listing("10", "2", "cat"), {"*": False}, "source")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[source\n", "is not valid TOML"),
        ("[colour]\na = 'b'", "There is no setting colour. The settings are names, source, target."),
        ("source = 3", "source cannot be 3"),
        ("[source]\ncat = true", "cannot be True"),
        ("[source]\ncat = 1.5", "cannot be 1.5"),
        ("names = ['one']", "names cannot be"),
        ("names = 'cat'", "names cannot be cat"),
    ],
)
def test_an_invalid_file_is_an_error(file: Callable[[str], Path], content: str, sentence: str) -> None:
    with pytest.raises(CrodoboError) as raised:
        read_classes(file(content))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(BadData, match=f"The file of classes {path} cannot be read"):
            read_classes(path)
    (tmp_path / "latin.toml").write_bytes(b"[source]\n\xe9 = 1")
    with pytest.raises(BadData, match="is not valid TOML"):
        read_classes(tmp_path / "latin.toml")


def test_names_are_sorted_and_the_target_may_lack_some() -> None:
    assert common_names({"10": 1, "9": 1, "b": 1, "a": 1}, {"9": 1}, None) == ["9", "10", "a", "b"]
    assert common_names({"b": 1, "a": 1}, {}, ("b", "a")) == ["b", "a"]


def test_if_classes_do_not_match_the_error_lists_both_sets() -> None:
    with pytest.raises(BadData) as raised:
        common_names({"cat": 1, "dog": 1}, {"Cat": 1, "dog": 1, "owl": 2}, None)
    assert str(raised.value) == (
        "The target has Cat, owl, which the source does not have. The source has cat, dog; the target has Cat, dog, "
        "owl. Give the classes common names in a file."
    )
    assert raised.value.settings == ("classes",)


@pytest.mark.parametrize("names", [("cat", "owl"), ("cat",), ("cat", "dog", "dog"), ("cat", "dog", "owl")])
def test_the_list_of_names_must_match_the_source(names: tuple[str, ...]) -> None:
    with pytest.raises(BadData, match=f"The names of the classes are {', '.join(names)}, but the source has cat, dog"):
        common_names({"cat": 1, "dog": 1}, {"cat": 1}, names)


def test_a_long_list_of_names_is_cut_short() -> None:
    many = {str(number): 1 for number in range(100)}
    with pytest.raises(BadData, match=r"38, 39 and 60 more; the target has x\. Give"):
        common_names(many, {"x": 1}, None)
