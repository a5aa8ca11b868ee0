"""A benchmark streams each sample of its target once and does not change."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.core.source import Source
from crodobo.data.benchmark import Benchmark, resize
from crodobo.data.stream import from_arrays
from crodobo.errors import BadSource
from crodobo.views.augment import Augment


def numbered(count: int = 20) -> Benchmark:
    """Target images that carry their own number as brightness."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 1, 8, 8).clone()
    source = Source(torch.rand(6, 1, 8, 8), [0, 1, 2] * 2)
    return Benchmark("numbered", "numbers", source, images, torch.arange(count) % 3, Augment())


def numbers(benchmark: Benchmark, *arguments: Any, **options: Any) -> list[list[int]]:
    """The numbers of the samples in each query."""
    found = []
    for query, labels in benchmark.stream(*arguments, **options):
        with query:
            inside = query.images[:, 0, 0, 0].tolist()
        assert labels.tolist() == [number % 3 for number in inside]
        found.append(inside)
    return found


@given(count=st.integers(1, 40), size=st.integers(1, 50), seed=st.integers(0, 100))
def test_every_sample_is_streamed_once_with_its_label(count: int, size: int, seed: int) -> None:
    queries = numbers(numbered(count), size, seed)
    assert sorted(number for query in queries for number in query) == list(range(count))
    assert all(len(query) == size for query in queries[:-1])
    assert 1 <= len(queries[-1]) <= size


def test_the_seed_decides_the_order() -> None:
    benchmark = numbered()
    assert numbers(benchmark, 6, 1) == numbers(benchmark, 6, 1)
    assert numbers(benchmark, 6, 1) != numbers(benchmark, 6, 2)


def test_the_kind_decides_the_order_and_random_is_the_default() -> None:
    benchmark = numbered()
    assert numbers(benchmark, 6, 1, kind="random") == numbers(benchmark, 6, 1)
    classes = [number % 3 for query in numbers(benchmark, 6, 1, kind="by-class") for number in query]
    assert classes == sorted(classes)
    assert benchmark.order(1, "drift").split(6)[2].tolist() == numbers(benchmark, 6, 1, kind="drift", start=2)[0]


def test_a_stream_has_a_start_and_an_end() -> None:
    benchmark = numbered()
    whole = numbers(benchmark, 6, 1)
    assert len(whole) == 4
    assert numbers(benchmark, 6, 1, start=1) == whole[1:]
    assert numbers(benchmark, 6, 1, queries=3) == whole[:3]
    assert numbers(benchmark, 6, 1, start=1, queries=3) == whole[1:3]
    assert numbers(benchmark, 6, 1, start=4) == []
    assert numbers(benchmark, 6, 1, queries=99) == whole


def test_burning_a_query_does_not_change_the_benchmark() -> None:
    benchmark = numbered()
    before = benchmark.images.clone()
    numbers(benchmark, 6, 1)
    assert torch.equal(benchmark.images, before)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"images": torch.zeros(20, 8, 8)}, "The target of numbered has shape"),
        ({"images": torch.full((20, 1, 8, 8), float("nan"))}, "The target of numbered has NaN"),
        ({"images": torch.zeros(20, 3, 8, 8)}, "Target and source of numbered differ in shape"),
        ({"images": torch.zeros(20, 1, 9, 8)}, "Target and source of numbered differ in shape"),
        ({"labels": torch.zeros(19, dtype=torch.int64)}, "needs one label from 0 to 2 for each image"),
        ({"labels": torch.full((20,), 3)}, "needs one label from 0 to 2 for each image"),
        ({"labels": torch.full((20,), -1)}, "needs one label from 0 to 2 for each image"),
    ],
    ids=["shape", "nan", "channels", "size", "too-few-labels", "label-too-high", "label-negative"],
)
def test_a_bad_target_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadSource, match=sentence):
        replace(numbered(), **change)


def test_a_resized_benchmark_keeps_its_samples() -> None:
    benchmark = replace(numbered(), source=Source(torch.full((3, 1, 8, 8), 90, dtype=torch.uint8), [0, 1, 2]))
    larger = benchmark.resized(12)
    assert larger.source.shape == (1, 12, 12)
    assert (larger.source.images == 90).all()
    assert torch.equal(larger.images[:, :, 0, 0], benchmark.images[:, :, 0, 0])
    assert torch.equal(larger.labels, benchmark.labels)
    assert larger.source.classes == benchmark.source.classes
    assert numbers(larger, 6, 1) == numbers(benchmark, 6, 1)


def test_resizing_keeps_the_brightness_of_float_images() -> None:
    half = torch.full((2, 1, 8, 8), 0.75)
    with_floats = Benchmark("floats", "floats", Source(half, [0, 1]), half, torch.tensor([0, 1]), Augment())
    with next(with_floats.resized(16).stream(2, seed=0))[0] as query:
        assert query.pixels().mean() == pytest.approx(0.75, abs=0.01)


def test_resizing_averages_and_stays_in_range() -> None:
    stripes = torch.tensor([255, 0, 0, 255], dtype=torch.uint8).repeat(4)  # without averaging, all would be black
    smaller = resize(stripes.expand(1, 1, 16, 16), 4)
    assert smaller.shape == (1, 1, 4, 4)
    assert smaller.dtype == torch.uint8
    assert (smaller.float() - 127.5).abs().max() < 40


def test_images_of_the_right_size_are_not_changed() -> None:
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(resize(images, 8), images)


@given(count=st.integers(1, 20), size=st.integers(1, 25))
def test_an_array_is_cut_into_queries_that_own_copies(count: int, size: int) -> None:
    images = np.arange(1, count + 1, dtype=np.uint8)[:, None, None, None].repeat(4, axis=3)
    before, seen = images.copy(), []
    for query in from_arrays(images, size):
        with query:
            assert len(query) <= size
            seen += query.images[:, 0, 0, 0].tolist()
    assert seen == list(range(1, count + 1))
    assert (images == before).all()
