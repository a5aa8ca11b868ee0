"""A query is readable inside `with` and leaves nothing behind."""

import copy
import gc
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crodobo.core.query import Query
from crodobo.errors import BadQuery, CrodoboError, QueryBurned

SHAPE = (1, 8, 8)


def bright(count: int = 2) -> Tensor:
    return torch.full((count, *SHAPE), 200, dtype=torch.uint8)


def burned() -> Query:
    with Query(bright()) as query:
        pass
    return query


READS: dict[str, Callable[[Query], object]] = {
    "images": lambda query: query.images,
    "pixels": lambda query: query.pixels(),
    "shape": lambda query: query.shape,
    "len": len,
    "own": lambda query: query.own(torch.ones(1)),
    "check": lambda query: query.check(SHAPE),
}


def test_an_open_query_returns_its_images_unchanged() -> None:
    images = torch.randint(256, (3, 2, 4, 5), dtype=torch.uint8)
    with Query(images.clone()) as query:
        assert len(query) == 3
        assert query.shape == (2, 4, 5)
        assert torch.equal(query.images, images)


def test_pixels_are_floats_in_0_to_1() -> None:
    with Query(torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1)) as query:
        assert query.pixels().dtype == torch.float32
        assert query.pixels().flatten().tolist() == pytest.approx([0, 0.2, 1])


def test_float_images_keep_their_values() -> None:
    images = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    with Query(images.clone()) as query:
        assert torch.equal(query.pixels(), images.float())


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_burned_query_cannot_be_read(read: Callable[[Query], object]) -> None:
    with pytest.raises(QueryBurned, match="burned"):
        read(burned())


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_query_cannot_be_read_outside_with(read: Callable[[Query], object]) -> None:
    with pytest.raises(CrodoboError, match=r"not open\. Read it inside `with query:`") as caught:
        read(Query(bright()))
    assert not isinstance(caught.value, QueryBurned)


def test_a_burned_query_cannot_be_entered_again() -> None:
    query = burned()
    with pytest.raises(QueryBurned), query:
        pass


def test_a_query_burns_when_its_block_raises() -> None:
    images = bright()
    query = Query(images)
    with pytest.raises(ZeroDivisionError), query:
        _ = 1 / 0
    assert images.count_nonzero() == 0
    with pytest.raises(QueryBurned):
        _ = query.images


def test_a_query_can_be_burned_by_hand_and_twice() -> None:
    images = bright()
    with Query(images) as query:
        query.burn()
        assert images.count_nonzero() == 0
        with pytest.raises(QueryBurned):
            _ = query.images
        query.burn()


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6)),
    dtype=st.sampled_from([np.uint8, np.float32, np.float64]),
    as_tensor=st.booleans(),
)
def test_burning_overwrites_the_memory_that_was_passed_in(shape: tuple[int, ...], dtype: type, as_tensor: bool) -> None:
    array = np.ones(shape, dtype=dtype)
    with Query(torch.from_numpy(array) if as_tensor else array) as query:
        seen = query.images
        assert array.all()
    assert not array.any()
    assert seen.count_nonzero() == 0


def test_burning_overwrites_a_part_of_a_larger_array_and_no_more() -> None:
    images = bright(6)
    with Query(images[2:4]):
        pass
    assert images.flatten(1).any(dim=1).tolist() == [True, True, False, False, True, True]


def test_burning_overwrites_one_image_repeated() -> None:
    image = torch.rand(1, *SHAPE)
    with Query(image.expand(4, *SHAPE)):
        pass
    assert image.count_nonzero() == 0


def test_burning_overwrites_every_float_copy() -> None:
    with Query(bright()) as query:
        copies = [query.pixels(), query.pixels()]
        assert all(pixels.all() for pixels in copies)
    assert not any(pixels.any() for pixels in copies)


@given(count=st.integers(1, 5))
def test_burning_overwrites_all_owned_tensors(count: int) -> None:
    with Query(bright()) as query:
        derived = [query.own(query.pixels().flip(-1) + number) for number in range(count)]
        assert all(tensor.all() for tensor in derived)
    assert not any(tensor.any() for tensor in derived)


def test_a_query_counts_the_bytes_that_it_overwrites() -> None:
    images = bright(3)
    with Query(images) as query:
        query.pixels()
        query.own(torch.ones(5, dtype=torch.float64))
        assert query.wiped == 0
    assert query.wiped == 3 * 64 + 3 * 64 * 4 + 5 * 8
    query.burn()
    assert query.wiped == 3 * 64 + 3 * 64 * 4 + 5 * 8


def test_memory_that_is_owned_twice_or_expanded_counts_once() -> None:
    images = torch.rand(1, *SHAPE)
    with Query(images) as query:
        query.own(query.own(query.images))
    assert query.wiped == 64 * 4
    with Query(torch.rand(1, *SHAPE).expand(4, *SHAPE)) as query:
        pass
    assert query.wiped == 64 * 4


def test_a_tensor_that_cannot_be_overwritten_is_not_counted() -> None:
    class Stubborn(Tensor):
        def zero_(self) -> Tensor:
            raise RuntimeError("no")

    query = Query(bright()).__enter__()
    query.own(torch.ones(1).expand(7))
    query.own(torch.ones(3).as_subclass(Stubborn))
    with pytest.raises(CrodoboError, match="could not be overwritten"):
        query.burn()
    assert query.wiped == 2 * 64 + 4


def test_own_returns_the_same_tensor() -> None:
    view = torch.rand(2, 3)
    with Query(bright()) as query:
        assert query.own(view) is view


def test_burning_overwrites_tensors_that_are_part_of_a_gradient() -> None:
    weight = torch.ones(1, requires_grad=True)
    leaf = torch.rand(2, *SHAPE).requires_grad_()
    with Query(leaf) as query:
        product = query.own(query.pixels() * weight)
    assert leaf.count_nonzero() == 0
    assert product.count_nonzero() == 0


def test_burning_overwrites_tensors_made_in_inference_mode() -> None:
    other = torch.ones(3)
    with Query(bright()) as query:
        with torch.inference_mode():
            pixels = query.pixels()
        query.own(other)
    assert pixels.count_nonzero() == 0
    assert other.count_nonzero() == 0


def test_an_unread_query_is_overwritten_when_it_is_deleted() -> None:
    images = bright()
    query = Query(images)
    assert images.all()
    del query
    gc.collect()
    assert images.count_nonzero() == 0


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_query_cannot_be_duplicated(duplicate: Callable[[Query], object]) -> None:
    with Query(bright()) as query, pytest.raises(CrodoboError, match="cannot be copied or pickled"):
        duplicate(query)


def test_a_read_only_array_is_refused() -> None:
    images = bright().numpy()
    images.flags.writeable = False
    with pytest.raises(BadQuery, match="read-only"):
        Query(images)


def test_an_array_with_negative_strides_is_refused() -> None:
    with pytest.raises(BadQuery):
        Query(np.ones((2, 3, 8, 8), dtype=np.uint8)[:, ::-1])


def test_the_repr_of_a_query_shows_no_pixel() -> None:
    query = Query(bright())
    assert repr(query) == "Query(closed)"
    with query:
        assert repr(query) == "Query(open)"
    assert repr(query) == "Query(burned)"


@pytest.mark.parametrize(
    "images",
    [bright(1), torch.zeros(2, *SHAPE), torch.ones(2, *SHAPE, dtype=torch.float64), torch.rand(2, *SHAPE).half()],
    ids=["uint8", "zeros", "float64", "float16"],
)
def test_valid_images_pass_the_check(images: Tensor) -> None:
    with Query(images) as query:
        query.check(SHAPE)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.zeros(2, 8, 8), r"has shape \(2, 8, 8\)"),
        (torch.zeros(0, *SHAPE), "is empty"),
        (torch.zeros(2, 1, 0, 8), "is empty"),
        (torch.zeros(2, *SHAPE, dtype=torch.int64), "type torch.int64; use uint8"),
        (torch.zeros(2, *SHAPE, dtype=torch.bool), "type torch.bool; use uint8"),
        (torch.full((2, *SHAPE), 200.0), "outside 0 to 1; floats must be in 0 to 1"),
        (torch.zeros(2, 3, 8, 8), "images of 3×8×8, and the model expects 1×8×8"),
        (torch.zeros(2, 1, 9, 8), "images of 1×9×8, and the model expects 1×8×8"),
    ],
    ids=["no-channels", "no-samples", "no-rows", "int64", "bool", "0-255-floats", "channels", "size"],
)
def test_invalid_images_are_refused(images: Tensor, sentence: str) -> None:
    with Query(images) as query, pytest.raises(BadQuery, match=sentence):
        query.check(SHAPE)


@given(bad=st.sampled_from([float("nan"), float("inf"), -float("inf")]), place=st.integers(0, 127))
def test_a_single_nan_or_infinite_pixel_is_found(bad: float, place: int) -> None:
    images = torch.rand(2, *SHAPE)
    images.view(-1)[place] = bad
    with Query(images) as query, pytest.raises(BadQuery, match="NaN or infinite"):
        query.check(SHAPE)


@given(
    bad=st.floats(-1e6, -1e-6) | st.floats(1.0001, 1e6),
    place=st.integers(0, 127),
)
def test_a_single_pixel_out_of_range_is_found(bad: float, place: int) -> None:
    images = torch.rand(2, *SHAPE)
    images.view(-1)[place] = bad
    with Query(images) as query, pytest.raises(BadQuery, match="must be in 0 to 1"):
        query.check(SHAPE)


def test_a_refused_query_is_burned_too() -> None:
    images = torch.full((2, *SHAPE), 7.0)
    with pytest.raises(BadQuery), Query(images) as query:
        query.check(SHAPE)
    assert images.count_nonzero() == 0
