"""The public source is decoded once, into a cache that is shared, bounded, and survives a kill at any time."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crodobo.core.observer import Observer
from crodobo.data import store
from crodobo.data.images import DecodedOnRead, MemoryMapped
from crodobo.data.pictures import Pictures, Shape
from crodobo.data.store import load_or_decode
from crodobo.errors import BadData, BadImage

SHAPE = (1, 8, 8)
EACH = 64  # bytes of a picture


class Numbered(Pictures):
    """Pictures that carry their number as brightness, and count how often they are read."""

    def __init__(self, count: int, name: str = "some", pause: float = 0, broken: Sequence[int] = ()) -> None:
        self.count, self.name, self.pause, self.broken = count, name, pause, broken
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def read(self, number: int, shape: Shape, fit: Any) -> np.ndarray:
        if number in self.broken:
            raise BadImage(f"The image {number} is damaged.", "Repair it.", settings=("skip_broken",))
        time.sleep(self.pause)
        self.reads.append(number)
        return np.full(shape, number % 251, np.uint8)

    def stamp(self) -> str:
        return f"{self.name}-{self.count}"

    def select(self, numbers: Sequence[int]) -> "Numbered":
        raise NotImplementedError


class Recorder(Observer):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def reading(self, done: int, total: int) -> None:
        self.steps.append((done, total))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store, "CHUNK", 8)
    return tmp_path / "cache" / "images"


def store_them(pictures: Pictures, shape: Shape = SHAPE, limit: float = 1e9, fit: Any = "squash") -> Any:
    """The pictures from the cache, the notes and the progress."""
    recorder = Recorder()
    images = load_or_decode(pictures, shape, fit, limit=limit, observer=recorder)
    return images, recorder.notes, recorder.steps


def brightness(images: Any) -> list[int]:
    batch = images[torch.arange(len(images))]
    assert batch.dtype == torch.uint8
    return batch.flatten(1).float().mean(1).int().tolist()


def files(cache: Path, ending: str = ".u8") -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.suffix == ending)


def test_pictures_are_decoded_once_and_then_mapped(cache: Path) -> None:
    first, again = Numbered(20), Numbered(20)
    images, notes, steps = store_them(first)
    assert isinstance(images, MemoryMapped)
    assert tuple(images.shape) == (20, 1, 8, 8)
    assert brightness(images) == list(range(20))
    assert sorted(first.reads) == list(range(20))
    assert (notes, steps) == ([], [(0, 20), (8, 20), (16, 20), (20, 20)])
    images, notes, steps = store_them(again)
    assert brightness(images) == list(range(20))
    assert (again.reads, notes, steps) == ([], [], [])
    (file,) = files(cache)
    assert file.read_bytes() == bytes(number for number in range(20) for _ in range(EACH))


def test_a_batch_is_a_copy_and_does_not_change_the_file(cache: Path) -> None:
    images, _, _ = store_them(Numbered(4))
    drawn = images[torch.tensor([3, 1, 3])]
    assert drawn[:, 0, 0, 0].tolist() == [3, 1, 3]
    drawn.zero_()
    assert brightness(images) == [0, 1, 2, 3]


def test_other_pictures_shapes_and_fits_have_their_own_files(cache: Path) -> None:
    for pictures, shape, fit in (
        (Numbered(4), SHAPE, "squash"),
        (Numbered(4, "others"), SHAPE, "squash"),
        (Numbered(4), (3, 8, 8), "squash"),
        (Numbered(4), (1, 16, 16), "squash"),
        (Numbered(4), SHAPE, "crop"),
    ):
        store_them(pictures, shape, fit=fit)
        assert sorted(pictures.reads) == [0, 1, 2, 3]
    assert len(files(cache)) == 5


def test_decoding_continues_after_a_kill(cache: Path) -> None:
    store_them(Numbered(20))
    (file,) = files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[: 8 * EACH] + b"\xaa" * 100)  # one chunk, and a part of the next that was not noted
    file.with_suffix(".json").write_text(json.dumps({"done": 8, "of": 20}))
    again = Numbered(20)
    images, _, steps = store_them(again)
    assert sorted(again.reads) == list(range(8, 20))
    assert steps[0] == (8, 20)
    assert brightness(images) == list(range(20))
    assert file.read_bytes() == whole


def damage(file: Path, kind: str) -> None:
    marker = file.with_suffix(".json")
    if kind == "no marker":
        marker.unlink()
    elif kind == "marker damaged":
        marker.write_text("{")
    elif kind == "no pixels":
        file.unlink()
    elif kind == "cut short":
        os.truncate(file, 9 * EACH + 5)
    elif kind == "unfinished but noted further":
        os.truncate(file, 0)
        marker.write_text(json.dumps({"done": 16, "of": 20}))


@pytest.mark.parametrize(
    "kind", ["no marker", "marker damaged", "no pixels", "cut short", "unfinished but noted further"]
)
def test_a_damaged_file_is_decoded_again(cache: Path, kind: str) -> None:
    store_them(Numbered(20))
    (file,) = files(cache)
    damage(file, kind)
    assert brightness(store_them(Numbered(20))[0]) == list(range(20))


def decode_slowly() -> None:
    store.CHUNK = 8
    load_or_decode(Numbered(400, pause=0.005), SHAPE, "squash", limit=1e9, observer=Observer())


def start(target: Any, count: int) -> list[Any]:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=target) for _ in range(count)]
    for process in processes:
        process.start()
    return processes


def test_a_process_that_is_killed_while_decoding_leaves_its_progress(cache: Path) -> None:
    (process,) = start(decode_slowly, 1)
    while not (cache.exists() and files(cache, ".json")):
        assert process.is_alive(), "it ended too early"
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    rest = Numbered(400)
    assert brightness(store_them(rest)[0]) == [number % 251 for number in range(400)]
    assert 0 < len(rest.reads) <= 392
    assert 0 not in rest.reads


def count_reads(folder: Path) -> None:
    store.CHUNK = 8
    pictures = Numbered(40, pause=0.002)
    images = load_or_decode(pictures, SHAPE, "squash", limit=1e9, observer=Observer())
    assert brightness(images) == list(range(40))
    (folder / str(os.getpid())).write_text(str(len(pictures.reads)))


def test_processes_that_start_together_decode_only_once(cache: Path, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    processes = start(lambda: count_reads(counts), 3)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert sorted(int(path.read_text()) for path in counts.iterdir()) == [0, 0, 40]


def test_the_file_unused_for_longest_is_deleted_first(cache: Path) -> None:
    limit = 3 * 10 * EACH
    for name in "abc":
        store_them(Numbered(10, name), limit=limit)
        for path in files(cache):
            os.utime(path, (path.stat().st_mtime - 100,) * 2)
    store_them(Numbered(10, "a"), limit=limit)  # used again, so b is now the oldest
    images, notes, _ = store_them(Numbered(10, "d"), limit=limit)
    assert isinstance(images, MemoryMapped)
    assert notes == []
    assert sum(path.stat().st_size for path in files(cache)) <= limit
    for name, there in (("a", True), ("c", True), ("d", True), ("b", False)):
        pictures = Numbered(10, name)
        store_them(pictures, limit=limit)
        assert (pictures.reads == []) == there, name


def test_a_deleted_file_stays_readable_while_it_is_mapped(cache: Path) -> None:
    images, _, _ = store_them(Numbered(10, "a"), limit=10 * EACH)
    store_them(Numbered(10, "b"), limit=10 * EACH)
    assert len(files(cache)) == 1
    assert brightness(images) == list(range(10))


def test_without_room_pictures_are_decoded_when_they_are_read(cache: Path) -> None:
    store_them(Numbered(5, "small"), limit=9 * EACH)
    images, notes, _ = store_them(Numbered(10), limit=10 * EACH - 1)
    assert isinstance(images, DecodedOnRead)
    assert brightness(images) == list(range(10))
    assert len(notes) == 1
    assert "(cache_size)" in notes[0]
    assert len(files(cache)) == 1, "other files are not deleted for nothing"


def test_without_a_writable_cache_pictures_are_decoded_when_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    images, notes, _ = store_them(Numbered(10))
    assert isinstance(images, DecodedOnRead)
    assert brightness(images) == list(range(10))
    assert "cannot be used" in notes[0]


def test_a_full_disk_is_noted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100})())
    images, notes, _ = store_them(Numbered(10))
    assert isinstance(images, DecodedOnRead)
    assert "the disk has 0.0 GB left" in notes[0]


def test_the_error_names_broken_pictures_and_the_next_attempt_continues(cache: Path) -> None:
    with pytest.raises(BadData) as raised:
        store_them(Numbered(20, broken=[10, 12]))
    assert str(raised.value) == ("The image 10 is damaged. 1 more near it cannot be used either. Repair it.")
    assert raised.value.settings == ("skip_broken",)
    mended = Numbered(20)
    assert brightness(store_them(mended)[0]) == list(range(20))
    assert sorted(mended.reads) == list(range(8, 20))
