"""Images that are read when they are indexed, and queries that are made while the one before is processed."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data.benchmark import Benchmark
from crodobo.data.images import DecodedOnRead, MemoryMapped
from crodobo.data.pictures import ArrayPictures, Files
from crodobo.data.prefetch import prefetch
from crodobo.data.stream import from_folder
from crodobo.errors import BadData, BadImage, BadSource
from crodobo.views.augment import Augment

SHAPE = (1, 8, 8)


def numbered(count: int) -> ArrayPictures:
    """Pictures that carry their number as brightness."""
    return ArrayPictures(np.arange(count, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.001)


def test_pictures_decoded_on_read_come_in_the_requested_order() -> None:
    images = DecodedOnRead(numbered(10), SHAPE, "squash")
    assert (len(images), tuple(images.shape), images.dtype) == (10, (10, 1, 8, 8), torch.uint8)
    chosen = torch.tensor([7, 0, 9, 7, 3])
    batch = images[chosen]
    assert torch.equal(batch, chosen.to(torch.uint8)[:, None, None, None].expand(5, 1, 8, 8))
    batch.zero_()
    assert images[torch.tensor([7])].max() == 7


def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no")
    images = DecodedOnRead(Files(tmp_path, ["bad.png"]), SHAPE, "squash")
    with pytest.raises(BadImage, match=r"bad\.png cannot be used: it is not an image"):
        images[torch.tensor([0])]


def test_mapped_images_are_read_by_many_threads_at_once(tmp_path: Path) -> None:
    pixels = np.arange(200, dtype=np.uint8)[:, None, None, None].repeat(8, 2).repeat(8, 3)
    (tmp_path / "pixels").write_bytes(pixels.tobytes())
    images = MemoryMapped(tmp_path / "pixels", pixels.shape)
    wrong: list[int] = []

    def draw(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(50):
            numbers = torch.randint(200, (16,), generator=generator)
            if not torch.equal(images[numbers].flatten(1).float().mean(1).long(), numbers):
                wrong.append(seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_all_items_come_in_order() -> None:
    assert list(prefetch(iter(range(50)))) == list(range(50))
    assert list(prefetch([])) == []
    assert list(prefetch(iter([None, 0, False]))) == [None, 0, False]


def test_only_the_next_item_is_made_in_advance() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(5):
            made.append(number)
            yield number

    for number in prefetch(items()):
        until(lambda number=number: len(made) == min(number + 2, 5))  # type: ignore[misc]
        time.sleep(0.02)
        assert made == list(range(min(number + 2, 5)))


def test_items_are_made_by_another_thread_of_this_process() -> None:
    def items() -> Iterator[int]:
        yield threading.get_ident()

    (maker,) = prefetch(items())
    assert maker != threading.get_ident()


def test_an_error_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise BadImage("the third is broken")

    found = prefetch(items())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(BadImage, match="the third is broken"):
        next(found)


def test_something_that_is_not_iterable_is_an_error() -> None:
    with pytest.raises(TypeError):
        next(prefetch(3))  # type: ignore[arg-type]


class Watched:
    """Queries whose memory can be inspected from outside."""

    def __init__(self) -> None:
        self.memory: list[Tensor] = []

    def __iter__(self) -> Iterator[Query]:
        for number in range(1, 6):
            self.memory.append(torch.full((2, 1, 8, 8), number, dtype=torch.uint8))
            yield Query(self.memory[-1])

    def burned(self) -> list[bool]:
        return [int(memory.sum()) == 0 for memory in self.memory]


def test_stopping_early_burns_the_query_that_is_ready() -> None:
    watched = Watched()
    threads = threading.active_count()
    queries = prefetch(watched)
    with next(queries):
        until(lambda: len(watched.memory) == 2)
        assert watched.burned() == [False, False]
    queries.close()  # type: ignore[attr-defined]
    assert watched.burned() == [True, True]
    assert threading.active_count() == threads


def test_an_error_in_the_loop_burns_the_query_that_is_ready() -> None:
    watched = Watched()

    def work() -> None:
        for query in prefetch(watched):
            with query:
                until(lambda: len(watched.memory) == 2)
                raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"):
        work()
    gc.collect()
    assert watched.burned() == [True, True]


def test_queries_are_burned_one_by_one() -> None:
    watched = Watched()
    for number, query in enumerate(prefetch(watched)):
        assert watched.burned()[:number] == [True] * number
        with query:
            assert int(query.images.max()) == number + 1
    assert watched.burned() == [True] * 5


def benchmark(images: DecodedOnRead) -> Benchmark:
    source = Source(torch.zeros(2, *SHAPE, dtype=torch.uint8), [0, 1])
    return Benchmark("some", "some", source, images, torch.arange(len(images)) % 2, Augment())


def test_a_stream_of_decoded_images_equals_that_of_a_tensor() -> None:
    images = DecodedOnRead(numbered(20), SHAPE, "squash")
    from_disk = benchmark(images)
    seen = []
    for query, labels in from_disk.stream(6, seed=1):
        with query:
            seen.append((query.images[:, 0, 0, 0].tolist(), labels.tolist()))
    order = from_disk.order(1)
    assert [numbers for numbers, _ in seen] == [part.tolist() for part in order.split(6)]
    assert [labels for _, labels in seen] == [(part % 2).tolist() for part in order.split(6)]


def test_a_target_of_another_shape_is_refused() -> None:
    with pytest.raises(BadSource, match="differ in shape"):
        benchmark(DecodedOnRead(numbered(4), (3, 8, 8), "squash"))


def test_a_folder_is_streamed_in_a_repeatable_random_order_with_paths(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}").mkdir()
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}/x.png")
    (tmp_path / "notes.txt").write_text("no image")

    def stream() -> list[tuple[list[int], list[str]]]:
        seen = []
        for query, paths in from_folder(tmp_path, size=4, image_size=8, grey=True):
            with query:
                assert query.shape == (1, 8, 8)
                seen.append((query.images[:, 0, 0, 0].tolist(), [path.parent.name for path in paths]))
        return seen

    seen = stream()
    assert [len(names) for _, names in seen] == [4, 4, 1]
    assert all(pixels == [int(name) for name in names] for pixels, names in seen)
    order = [pixel for pixels, _ in seen for pixel in pixels]
    assert sorted(order) == list(range(9)) != order
    assert stream() == seen
    assert (tmp_path / "1/x.png").exists()


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_images_is_an_error(tmp_path: Path, there: bool) -> None:
    folder = tmp_path if there else tmp_path / "nowhere"
    with pytest.raises(BadData, match=f"There is no image in {folder}"):
        from_folder(folder)
