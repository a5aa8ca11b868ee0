"""The source draws with replacement, is reproducible, and reports bad data."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.core.source import Source
from crodobo.errors import BadSource

IMAGES = torch.zeros(4, 1, 8, 8)


def numbered(count: int) -> Source:
    """Images whose brightness is their number."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 3, 4, 4).clone()
    return Source(images, torch.arange(count) % 2)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_draw_can_be_larger_than_the_source() -> None:
    batch = numbered(5).bootstrap(50, seeded(0))
    assert len(batch.images) == len(batch.labels) == len(batch.indices) == 50
    assert set(batch.indices.tolist()) == set(range(5))


def test_a_draw_of_the_source_size_repeats_samples() -> None:
    indices = numbered(100).bootstrap(100, seeded(0)).indices
    assert 50 < len(indices.unique()) < 80  # about 1 - 1/e of them


@given(count=st.integers(2, 60), size=st.integers(1, 40), seed=st.integers(0, 1000))
def test_images_labels_and_indices_belong_together(count: int, size: int, seed: int) -> None:
    source = numbered(count)
    batch = source.bootstrap(size, seeded(seed))
    assert torch.equal((batch.images * 255).round().long(), batch.indices[:, None, None, None].expand(size, 3, 4, 4))
    assert torch.equal(batch.labels, source.labels[batch.indices])
    assert batch.images.dtype == torch.float32


def test_the_same_generator_state_draws_the_same() -> None:
    source = numbered(50)
    first, second = (source.bootstrap(20, seeded(3)) for _ in range(2))
    assert torch.equal(first.indices, second.indices)
    assert torch.equal(first.images, second.images)


def test_the_next_draw_of_a_generator_is_different() -> None:
    source, generator = numbered(50), seeded(3)
    assert not torch.equal(source.bootstrap(20, generator).indices, source.bootstrap(20, generator).indices)


def test_different_generators_draw_differently() -> None:
    source = numbered(50)
    assert not torch.equal(source.bootstrap(20, seeded(1)).indices, source.bootstrap(20, seeded(2)).indices)


def test_a_draw_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    numbered(50).bootstrap(20, seeded(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_changing_a_drawn_batch_leaves_the_source_alone() -> None:
    source = Source(torch.full((4, 1, 2, 2), 0.5), [0, 1, 0, 1])
    source.bootstrap(4, seeded(0)).images.zero_()
    assert torch.equal(source.images, torch.full((4, 1, 2, 2), 0.5))


@pytest.mark.parametrize(
    "labels",
    [[0, 1, 2, 1], np.array([0, 1, 2, 1], dtype=np.int32), torch.tensor([0, 1, 2, 1], dtype=torch.uint8)],
    ids=["list", "int32-array", "uint8-tensor"],
)
def test_labels_may_have_any_integer_type(labels: object) -> None:
    source = Source(IMAGES, labels)  # type: ignore[arg-type]
    assert source.labels.tolist() == [0, 1, 2, 1]
    assert source.labels.dtype == torch.int64
    assert source.classes == ("0", "1", "2")


def test_a_source_knows_its_size_shape_and_classes() -> None:
    source = Source(np.zeros((4, 3, 8, 6), dtype=np.uint8), [0, 1, 0, 1], classes=["cat", "dog"])
    assert len(source) == 4
    assert source.shape == (3, 8, 6)
    assert source.classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("labels", "classes", "sentence"),
    [
        ([0, 1, 2, 3], ["cat", "dog"], "run from 0 to 3, but 2 classes are numbered 0 to 1"),
        ([-1, 0, 1, 1], ["cat", "dog"], "run from -1 to 1"),
        ([-1, 0, 1, 1], None, "run from -1 to 1"),
        ([0, 0, 2, 2], ["cat", "dog", "emu"], r"no sample of dog\."),
        ([1, 1, 1, 1], ["cat", "dog", "emu"], r"no sample of cat, emu\."),
        ([0, 0, 1, 1], list("abcdefghijkl"), r"no sample of c, d, e, f, g, h, i, j and 2 more\."),
        ([0, 0, 2, 2], None, r"no sample of 1\."),
        ([0, 0, 0, 0], None, "only one class"),
        ([0, 1, 0], None, r"4 images and labels of shape \(3,\)"),
        ([[0], [1], [0], [1]], None, r"4 images and labels of shape \(4, 1\)"),
        ([0.0, 1.0, 0.0, 1.0], None, r"labels are torch.float32\. Use whole class numbers"),
    ],
    ids=[
        "too-high",
        "negative",
        "negative-without-names",
        "missing",
        "two-missing",
        "many-missing",
        "missing-without-names",
        "one-class",
        "too-few",
        "column",
        "floats",
    ],
)
def test_bad_labels_are_refused(labels: list[int], classes: list[str] | None, sentence: str) -> None:
    with pytest.raises(BadSource, match=sentence):
        Source(IMAGES, labels, classes)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.full((4, 1, 8, 8), float("nan")), "The source has NaN"),
        (torch.full((4, 1, 8, 8), float("inf")), "The source has NaN or infinite"),
        (torch.full((4, 1, 8, 8), 2.0), "The source has pixels from 2 to 2"),
        (torch.zeros(4, 8, 8), "The source has shape"),
        (torch.zeros(0, 1, 8, 8), "The source is empty"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.int32), "The source has pixels of type torch.int32"),
    ],
    ids=["nan", "inf", "range", "shape", "empty", "int32"],
)
def test_bad_images_are_refused(images: torch.Tensor, sentence: str) -> None:
    with pytest.raises(BadSource, match=sentence):
        Source(images, [0, 1, 0, 1])
