"""The cache saves work, and never causes an error."""

from pathlib import Path

import numpy as np
import pytest

from crodobo.data.cache import Arrays, cache_folder, cached


class Maker:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {"images": np.arange(60, dtype=np.uint8).reshape(5, 3, 4), "labels": np.arange(5)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def assert_sound(arrays: Arrays) -> None:
    expected = Maker()()
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)


def test_arrays_are_made_once(folder: Path) -> None:
    make = Maker()
    assert_sound(cached("numbers", make))
    assert_sound(cached("numbers", make))
    assert make.calls == 1
    assert [path.name for path in folder.iterdir()] == ["numbers.npz"]


def test_another_name_is_another_entry(folder: Path) -> None:
    make = Maker()
    cached("numbers", make)
    cached("others", make)
    assert make.calls == 2
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    ["empty", "cut", "last-byte", "text", "flipped"],
)
def test_a_damaged_entry_is_made_again(folder: Path, damage: str) -> None:
    make = Maker()
    cached("numbers", make)
    path = folder / "numbers.npz"
    whole = path.read_bytes()
    middle = whole.index(bytes(range(20, 40)))
    path.write_bytes(
        {
            "empty": b"",
            "cut": whole[: len(whole) // 2],
            "last-byte": whole[:-1],
            "text": b"not an archive",
            "flipped": whole[:middle] + b"\xff" + whole[middle + 1 :],
        }[damage]
    )
    assert_sound(cached("numbers", make))
    assert make.calls == 2
    assert_sound(cached("numbers", make))
    assert make.calls == 2


@pytest.mark.parametrize("damage", ["method", "bare-array"])
def test_an_entry_with_damaged_headers_is_made_again(folder: Path, damage: str) -> None:
    make = Maker()
    cached("numbers", make)
    path = folder / "numbers.npz"
    if damage == "method":
        content = bytearray(path.read_bytes())
        content[content.index(b"PK\x01\x02") + 10] = 0x63  # an unknown compression method
        path.write_bytes(content)
    else:
        with path.open("wb") as file:
            np.save(file, np.ones(3))
    assert_sound(cached("numbers", make))


def test_nothing_pickled_is_read_from_the_cache(folder: Path) -> None:
    folder.mkdir()
    np.savez(folder / "numbers.npz", images=np.array([{"any": "object"}], dtype=object))
    assert_sound(cached("numbers", Maker()))


def test_an_unwritable_cache_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "file" / "cache"))
    make = Maker()
    assert_sound(cached("numbers", make))
    assert_sound(cached("numbers", make))
    assert make.calls == 2
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_is_tolerated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert_sound(cached("numbers", Maker()))
    assert not (folder / "numbers.npz").exists()


def test_an_error_in_making_comes_through_and_leaves_no_entry(folder: Path) -> None:
    def fails() -> Arrays:
        raise ArithmeticError("no fonts")

    with pytest.raises(ArithmeticError, match="no fonts"):
        cached("numbers", fails)
    assert_sound(cached("numbers", Maker()))


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRODOBO_CACHE", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")
    monkeypatch.delenv("CRODOBO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/users/cache")
    assert cache_folder() == Path("/users/cache/crodobo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "crodobo"
