"""The Open Inference Protocol: valid requests are parsed exactly, invalid ones are refused."""

import json
import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crodobo.serve.errors import BadRequest
from crodobo.serve.oip import OUTPUTS, TYPES, InferRequest, load_json, pack_answer, parse

SHAPE = (1, 4, 3)
KINDS = {"UINT8": np.uint8, "FP32": np.float32, "FP64": np.float64}
SECRET = "sesame"  # stands for content that a client sends

uint8_batches = st.integers(1, 4).flatmap(lambda samples: hnp.arrays(np.uint8, (samples, *SHAPE)))
names = st.sampled_from(sorted(KINDS))
# Any JSON, with words of the protocol among it.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([SECRET, "images", *TYPES]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def as_body(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def valid(samples: int = 2, datatype: str = "UINT8") -> dict[str, Any]:
    """A valid request, in JSON alone."""
    size = samples * int(np.prod(SHAPE))
    tensor = {"name": "images", "shape": [samples, *SHAPE], "datatype": datatype, "data": [0] * size}
    return {"inputs": [tensor]}


def packed(request: dict[str, Any], content: bytes = b"") -> tuple[torch.Tensor, int]:
    header = json.dumps(request).encode()
    return as_body(header + content), len(header)


def refused(body: torch.Tensor, length: int | None = None) -> str:
    """The error for a request. Any other exception fails the test."""
    with pytest.raises(BadRequest) as caught:
        parse(body, length, SHAPE)
    assert caught.value.status in (400, 413)
    return str(caught.value)


def read_or_refused(body: torch.Tensor, length: int | None) -> None:
    """Parse a request into images of the right shape, or get an error that repeats none of its content."""
    try:
        asked = parse(body, length, SHAPE)
    except BadRequest as error:
        text = str(error)
    else:
        text = ""
        assert tuple(asked.images.shape[1:]) == SHAPE
        assert asked.images.dtype in (torch.uint8, torch.float32)
    assert SECRET not in text


# --- valid requests ---


@given(batch=uint8_batches, name=names, flat=st.booleans())
def test_numbers_in_json_are_read_flat_or_nested(batch: np.ndarray, name: str, flat: bool) -> None:
    scaled = batch if name == "UINT8" else (batch / 255).astype(KINDS[name])
    request = valid(len(batch), name)
    request["inputs"][0]["data"] = (scaled.reshape(-1) if flat else scaled).tolist()
    images = parse(packed(request)[0], None, SHAPE).images
    assert np.array_equal(images.numpy(), scaled.astype(np.uint8 if name == "UINT8" else np.float32))


@given(batch=uint8_batches, name=names, padding=st.integers(0, 9))
def test_bytes_after_the_json_are_read_at_any_offset(batch: np.ndarray, name: str, padding: int) -> None:
    scaled = batch if name == "UINT8" else (batch / 255).astype(KINDS[name])
    request = valid(len(batch), name)
    del request["inputs"][0]["data"]
    request["inputs"][0]["parameters"] = {"binary_data_size": scaled.nbytes}
    request["id"] = "x" * padding  # changes the length of the JSON, so that the bytes are not aligned
    images = parse(*packed(request, scaled.tobytes()), SHAPE).images
    assert np.array_equal(images.numpy(), scaled.astype(np.uint8 if name == "UINT8" else np.float32))


@given(
    wanted=st.lists(st.sampled_from(OUTPUTS), unique=True, min_size=1),
    binary=st.frozensets(st.sampled_from(OUTPUTS)),
    labels=st.lists(st.text(max_size=6), min_size=1, max_size=5),
)
def test_an_answer_has_each_output_once_as_numbers_or_as_bytes(
    wanted: list[str], binary: frozenset[str], labels: list[str]
) -> None:
    samples = len(labels)
    probabilities = np.random.default_rng(samples).random((samples, 3), dtype=np.float32)
    given_outputs = {"labels": labels, "confidence": probabilities.max(axis=1), "probabilities": probabilities}
    asked = InferRequest(torch.zeros(samples, *SHAPE), "7", {}, tuple(wanted), binary & frozenset(wanted))
    content, length = pack_answer(asked, given_outputs, "crodobo", {"query": 3})
    header = json.loads(content[:length])
    assert (header["id"], header["parameters"], [each["name"] for each in header["outputs"]]) == (
        "7",
        {"query": 3},
        wanted,
    )
    assert (length is None) == (not asked.binary)
    place = length or 0
    for each in header["outputs"]:
        there = given_outputs[each["name"]]
        if each["name"] in asked.binary:
            size = each["parameters"]["binary_data_size"]
            part, place = content[place : place + size], place + size
            found = unpacked(part) if each["datatype"] == "BYTES" else np.frombuffer(part, "<f4").reshape(each["shape"])
        else:
            found = each["data"] if each["datatype"] == "BYTES" else np.array(each["data"], "f4").reshape(each["shape"])
        assert np.array_equal(np.asarray(found), np.asarray(there))
    assert place == (len(content) if length else 0)


def unpacked(content: bytes) -> list[str]:
    """Strings, each after its length in four bytes."""
    texts, place = [], 0
    while place < len(content):
        (size,) = struct.unpack_from("<I", content, place)
        texts.append(content[place + 4 : place + 4 + size].decode())
        place += 4 + size
    return texts


@pytest.mark.parametrize(
    ("asked", "outputs", "binary"),
    [
        ({}, OUTPUTS, set()),
        ({"outputs": []}, OUTPUTS, set()),
        ({"parameters": {"binary_data_output": True}}, OUTPUTS, set(OUTPUTS)),
        ({"outputs": [{"name": "labels"}]}, ("labels",), set()),
        ({"outputs": [{"name": "labels"}, {"name": "labels"}]}, ("labels",), set()),
        ({"outputs": [{"name": "labels", "parameters": {"binary_data": True}}]}, ("labels",), {"labels"}),
        (
            {
                "parameters": {"binary_data_output": True},
                "outputs": [{"name": "labels", "parameters": {"binary_data": False}}, {"name": "confidence"}],
            },
            ("labels", "confidence"),
            {"confidence"},
        ),
    ],
)
def test_only_requested_outputs_are_returned(asked: dict[str, Any], outputs: tuple[str, ...], binary: set[str]) -> None:
    found = parse(packed(valid() | asked)[0], None, SHAPE)
    assert (found.outputs, found.binary) == (outputs, binary)


# --- invalid requests ---


@given(content=st.binary(min_size=1, max_size=200), length=st.none() | st.integers(-2, 250))
def test_any_bytes_are_refused(content: bytes, length: int | None) -> None:
    read_or_refused(as_body(content), length)


@given(place=st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), value=values)
def test_any_value_in_an_input_is_read_or_refused(place: str, value: Any) -> None:
    request = valid()
    request["inputs"][0][place] = value
    read_or_refused(packed(request)[0], None)


@given(place=st.sampled_from(["inputs", "outputs", "parameters", "id"]), value=values)
def test_any_value_in_a_request_is_read_or_refused(place: str, value: Any) -> None:
    read_or_refused(packed(valid() | {place: value})[0], None)


@given(value=values, content=st.binary(max_size=64), cut=st.integers(-5, 5))
def test_any_binary_data_size_is_read_or_refused(value: Any, content: bytes, cut: int) -> None:
    request = valid()
    request["inputs"][0]["parameters"] = {"binary_data_size": value}
    body, length = packed(request, content)
    read_or_refused(body, length + cut)


@pytest.mark.parametrize("kind", [[], {}, [SECRET], {SECRET: 1}, SECRET, None, 3, "uint8", "BYTES", "INT64"])
def test_an_unknown_datatype_is_refused(kind: Any) -> None:
    request = valid()
    request["inputs"][0]["datatype"] = kind
    assert refused(packed(request)[0]) == "The input's `datatype` must be one of UINT8, FP32, FP64."


@pytest.mark.parametrize("name", [[], {}, [SECRET], SECRET, None, 3])
def test_an_unknown_output_is_refused(name: Any) -> None:
    sentence = refused(packed(valid() | {"outputs": [{"name": name}]})[0])
    assert sentence == "The outputs are labels, confidence, probabilities. Request only these."


@pytest.mark.parametrize(
    "data",
    [
        None,
        SECRET,
        [],
        [SECRET] * 24,
        [True] * 24,
        [None] * 24,
        [[1, 2], [3]],
        [256] * 24,
        [-1] * 24,
        [0.5] * 24,
        [2**70] * 24,
        [0] * 23,
        [0] * 25,
        [{SECRET: 0}] * 24,
    ],
)
def test_data_that_are_not_pixels_are_refused(data: Any) -> None:
    request = valid()
    request["inputs"][0]["data"] = data
    assert SECRET not in refused(packed(request)[0])


@pytest.mark.parametrize("number", ["1e39", "1e308", "1e999", "-1e300", "NaN", "Infinity"])
def test_numbers_too_large_for_float32_become_infinite(number: str) -> None:
    text = json.dumps(valid(datatype="FP32")).replace("[0, 0", f"[{number}, 0")
    assert number in text
    images = parse(as_body(text.encode()), None, SHAPE).images
    assert not np.isfinite(images.numpy()).all()  # the service refuses infinite pixels


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 90 + "]" * 90, "1" * 5000, '"\\ud800"'])
def test_json_that_is_too_deep_or_not_an_object_is_refused(text: str) -> None:
    refused(as_body(text.encode()))


def test_data_nested_too_deep_are_refused() -> None:
    text = json.dumps(valid()).replace(json.dumps([0] * 24), "[" * 90 + "0" + "]" * 90)
    refused(as_body(text.encode()))


@pytest.mark.parametrize(
    "sizes",
    [None, SECRET, [], [2], [2, 1, 4], [2, 1, 3, 4], [0, 1, 4, 3], [-1, 1, 4, 3], [2.0, 1, 4, 3], [True, 1, 4, 3]],
)
def test_a_shape_other_than_the_models_is_refused(sizes: Any) -> None:
    request = valid()
    request["inputs"][0]["shape"] = sizes
    assert SECRET not in refused(packed(request)[0])


def test_a_huge_shape_allocates_nothing() -> None:
    request = valid()
    request["inputs"][0]["shape"] = [2**31 - 1, *SHAPE]
    assert "does not match its `shape`" in refused(packed(request)[0])
    request["inputs"][0]["parameters"] = {"binary_data_size": (2**31 - 1) * 12}
    assert "do not match" in refused(packed(request)[0])


def test_errors_about_json_repeat_none_of_it() -> None:
    for text in (f'{{"{SECRET}": }}', f'"{SECRET}', SECRET, f'["{SECRET}"]'):
        with pytest.raises(BadRequest) as caught:
            load_json(as_body(text.encode()))
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__ or not caught.value.__context__  # JSON's own error quotes the text


def test_json_that_would_block_the_event_loop_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"larger than 16 MB\. Send the pixels as bytes") as caught:
        parse(torch.zeros(2**24 + 1, dtype=torch.uint8), None, (1, 2, 2))
    assert caught.value.status == 413


def test_a_string_among_numbers_is_refused_before_an_array_is_made() -> None:
    request = valid(samples=2000)
    request["inputs"][0]["data"] = ["x" * 20_000, *request["inputs"][0]["data"][1:]]
    body, length = packed(request)
    tracemalloc.start()
    try:
        refused(body, length)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data", [[[1, 2, 3], [4]], [[1, 2], 3, 4], [True, 1, 1, 1], ["1", 1, 1, 1], [None, 1, 1, 1], []]
)
def test_rows_of_different_lengths_are_refused(data: list[Any]) -> None:
    body, length = packed({"inputs": [{"name": "images", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": data}]})
    with pytest.raises(BadRequest):
        parse(body, length, (1, 2, 2))
