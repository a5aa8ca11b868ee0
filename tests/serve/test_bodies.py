"""Request bodies: images are decoded, everything else is refused, and nothing stays in the arena."""

import asyncio
import io
import itertools
import struct
import time
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive

from crodobo.burn.arena import Arena
from crodobo.core.memory import Memory
from crodobo.serve import bodies
from crodobo.serve.bodies import FORM, NPY, RAW, Wanted, decode_images, read_body, split_form
from crodobo.serve.errors import BadRequest

SHAPE = (1, 4, 3)
SECRET = b"sesame"

batches = st.integers(1, 4).flatmap(lambda samples: hnp.arrays(np.uint8, (samples, *SHAPE)))


def as_body(content: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def as_npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def as_png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def with_header(text: str, version: int = 1) -> bytes:
    """An array in numpy's format with this text as its header."""
    content = text.encode()
    return b"\x93NUMPY" + bytes([version, 0]) + len(content).to_bytes(2 if version == 1 else 4, "little") + content


def with_shape(shape: tuple[int, ...]) -> bytes:
    """An array of bytes whose header claims this shape."""
    return with_header(repr({"descr": "|u1", "fortran_order": False, "shape": shape}))


def form(*files: bytes, boundary: bytes = b"limit") -> bytes:
    head = b'--%s\r\nContent-Disposition: form-data; name="file"; filename="1.png"\r\n\r\n'
    return b"".join(head % boundary + file + b"\r\n" for file in files) + b"--%s--\r\n" % boundary


def test_the_pixels_of_a_request_are_limited_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    monkeypatch.setattr(bodies, "_decode_files", lambda *_: decoded.append(1))
    file = io.BytesIO()
    Image.new("P", (64, 64)).save(file, "PNG")
    part = b"--x\r\nContent-Disposition: form-data; name=image\r\n\r\n" + file.getvalue() + b"\r\n"

    def status(count: int) -> int:
        body = as_body(part * count + b"--x--\r\n")
        try:
            asyncio.run(decode_images(body, f"{FORM}; boundary=x", Wanted(SHAPE, 99, pixels=64 * 64), Memory()))
        except BadRequest as error:
            return error.status
        return 200

    assert [status(8), status(9)] == [200, 413]
    assert len(decoded) == 1


def decode(
    content: bytes, kind: str, most: int = 8, dtype: str = "uint8", memory: Memory | None = None
) -> torch.Tensor:
    return asyncio.run(decode_images(as_body(content), kind, Wanted(SHAPE, most), memory or Memory(), dtype))


def refused(content: bytes, kind: str, **options: Any) -> BadRequest:
    """The error for a body. Any other exception fails the test."""
    with pytest.raises(BadRequest) as caught:
        decode(content, kind, **options)
    assert SECRET.decode() not in str(caught.value)
    return caught.value


def receiver(*parts: bytes, more: bool = False) -> Receive:
    """Receives a body in parts. With `more`, the client then stops sending."""
    left = [{"type": "http.request", "body": part, "more_body": True} for part in parts]

    async def receive() -> Message:
        if not left and more:
            await asyncio.sleep(10)
        return left.pop(0) if left else {"type": "http.request", "body": b"", "more_body": False}

    return receive


# --- reading ---


@given(content=st.binary(min_size=1, max_size=100), cuts=st.lists(st.integers(0, 100), max_size=5))
def test_a_body_is_assembled_from_its_chunks(content: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    parts = [content[start:stop] for start, stop in itertools.pairwise(places)]
    body = asyncio.run(read_body(receiver(*parts), len(content), 100, Memory()))
    assert body.numpy().tobytes() == content


@pytest.mark.parametrize(
    ("parts", "length", "status"),
    [((b"abc",), None, 411), ((b"abc",), 11, 413), ((), 0, 400), ((b"abc",), 2, 400), ((b"a", b"b"), 3, 400)],
)
def test_a_body_that_does_not_match_its_content_length_is_refused(
    parts: tuple[bytes, ...], length: int | None, status: int
) -> None:
    arena = Arena()
    with pytest.raises(BadRequest) as caught:
        asyncio.run(read_body(receiver(*parts), length, 10, arena))
    assert caught.value.status == status
    assert not arena.used


def test_a_body_that_stops_arriving_leaves_nothing_in_the_arena() -> None:
    arena = Arena()

    async def hurried() -> None:
        async with asyncio.timeout(0.01):
            await read_body(receiver(SECRET, more=True), 100, 100, arena)

    with pytest.raises(TimeoutError):
        asyncio.run(hurried())
    assert not arena.used


@pytest.mark.parametrize("pause", [0.0, 0.02])
def test_a_body_must_keep_arriving(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a body that stops nor one that drips holds its place until the deadline."""
    monkeypatch.setattr(bodies, "PATIENCE", 0.1)
    arena, forever = Arena(), asyncio.Event()

    async def stalled() -> Message:
        await (asyncio.sleep(pause) if pause else forever.wait())
        return {"type": "http.request", "body": b"b", "more_body": True}

    async def work() -> float:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await read_body(stalled, 10_000, 10_000, arena, seconds=60)
        return time.monotonic() - started

    assert asyncio.run(work()) < 30
    assert not arena.used


def test_a_body_that_arrives_fast_enough_has_until_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "PATIENCE", 0.2)
    monkeypatch.setattr(bodies, "SLOWEST", 1)

    async def steady() -> Message:
        await asyncio.sleep(0.1)
        left.pop()
        return {"type": "http.request", "body": b"a", "more_body": bool(left)}

    left = [1] * 5
    assert len(asyncio.run(read_body(steady, 5, 5, Memory()))) == 5


def test_a_client_that_disconnects_leaves_nothing_in_the_arena() -> None:
    arena = Arena()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        asyncio.run(read_body(receive, 100, 100, arena))
    assert not arena.used


# --- images ---


@given(batch=batches)
def test_raw_pixels_are_decoded(batch: np.ndarray) -> None:
    assert np.array_equal(decode(batch.tobytes(), RAW).numpy(), batch)
    unit = (batch / 255).astype(np.float32)
    assert np.array_equal(decode(unit.tobytes(), RAW, dtype="float32").numpy(), unit)


@given(batch=batches, kind=st.sampled_from([np.uint8, np.float32, np.float64]), order=st.sampled_from("CF"))
def test_numpy_arrays_are_decoded(batch: np.ndarray, kind: type, order: Any) -> None:
    array = np.array(batch if kind is np.uint8 else batch / 255, kind, order=order)
    wanted = array.astype(np.uint8 if kind is np.uint8 else np.float32)
    assert np.array_equal(decode(as_npy(array), NPY).numpy(), wanted)
    assert np.array_equal(decode(as_npy(array[0]), NPY).numpy(), wanted[:1])


@given(batch=batches)
def test_files_are_decoded_alone_and_in_a_form(batch: np.ndarray) -> None:
    files = [as_png(image[0]) for image in batch]
    assert np.array_equal(decode(files[0], "image/png; q=1").numpy(), batch[:1])
    assert np.array_equal(decode(form(*files), f"{FORM}; boundary=limit").numpy(), batch)


@given(
    files=st.lists(st.binary(max_size=40).filter(lambda file: b"--limit" not in file), min_size=1, max_size=5),
    quoted=st.booleans(),
)
def test_a_form_is_split_into_its_files(files: list[bytes], quoted: bool) -> None:
    boundary = ' boundary="limit"' if quoted else " charset=utf-8; boundary=limit"
    assert split_form(memoryview(form(*files)), boundary, most=5) == files


@pytest.mark.parametrize("name", ["boundary", "Boundary", "BOUNDARY"])
def test_the_boundary_parameter_is_case_insensitive(name: str) -> None:
    assert split_form(memoryview(form(b"first")), f" {name}=limit", most=1) == [b"first"]


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (bytes(12), RAW),
        (as_npy(np.zeros((1, *SHAPE), np.uint8)), NPY),
        (as_png(np.zeros((4, 3), np.uint8)), "image/png"),
        (form(as_png(np.zeros((4, 3), np.uint8))), f"{FORM}; boundary=limit"),
    ],
)
def test_images_own_their_memory_so_burning_the_body_hits_no_other_query(content: bytes, kind: str) -> None:
    arena = Arena()
    body = arena.take(as_body(content))
    images = asyncio.run(decode_images(body, kind, Wanted(SHAPE, 8), arena))
    arena.burn([images])
    other = arena.take(torch.ones(1, *SHAPE, dtype=torch.uint8))  # may reuse the memory of the images
    arena.burn([body])
    assert other.min() == 1


# --- invalid bodies ---


@given(
    content=st.binary(min_size=1, max_size=200),
    kind=st.sampled_from([NPY, f"{FORM}; boundary=x", "image/png", "image/jpeg", "image/tiff", "image/gif", "text/x"]),
)
def test_any_bytes_are_refused(content: bytes, kind: str) -> None:
    refused(content, kind)


@given(content=st.binary(max_size=120), version=st.sampled_from([1, 2, 3]))
def test_any_numpy_header_is_refused(content: bytes, version: int) -> None:
    refused(with_header(content.decode("latin-1"), version), NPY)


@pytest.mark.parametrize(
    "text",
    [
        "{'descr': (), 'fortran_order': False, 'shape': (1,)}",
        "{'descr': [()], 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000, 1000000, 1000000)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 4294967296, 4294967296, 4)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 1, 4, 3)}",
        "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 1, 4, 3)}",
        "{'descr': '|S0', 'fortran_order': False, 'shape': (2, 1, 4, 3)}",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (2, 1, 4, 3)}",
        "{'descr': '<M8[sesame]', 'fortran_order': False, 'shape': (1,)}",
        "{'descr': {'sesame': 1}, 'fortran_order': False, 'shape': (1,)}",
        "{'descr': ",
        "(" * 150,
        "-" * 9000 + "1",
        "[" * 9000,
        "'" * 3,
        "sesame",
        "",
    ],
)
def test_a_hostile_numpy_header_is_refused(text: str) -> None:
    for version in (1, 2, 3):
        refused(with_header(text, version), NPY)


def test_a_header_that_claims_a_huge_array_allocates_nothing() -> None:
    """numpy would allocate it first. Where freed memory is overwritten, that alone could end the process."""
    text = "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 1, 100000, 1000000)}"
    assert str(refused(with_header(text), NPY)) == "The size of the array does not match its shape."


def test_numbers_that_float32_cannot_hold_become_infinite_without_a_warning() -> None:
    assert not decode(as_npy(np.full((1, *SHAPE), 1e300)), NPY).isfinite().any()  # the service refuses infinite pixels


def test_pickles_are_not_read() -> None:
    file = io.BytesIO()
    np.save(file, np.array([{"sesame": 1}], dtype=object), allow_pickle=True)
    refused(file.getvalue(), NPY)


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (bytes(12 * 9), RAW, 413),
        (bytes(13), RAW, 400),
        (as_npy(np.zeros((9, *SHAPE), np.uint8)), NPY, 413),
        (as_npy(np.zeros((0, *SHAPE), np.uint8)), NPY, 400),
        (
            with_header(
                "{'descr': '|u1', 'fortran_order': False, 'shape': (0, 2**70, 1, 1)}".replace("2**70", "9" * 22)
            ),
            NPY,
            400,
        ),
        (
            with_header("{'descr': '|u1', 'fortran_order': False, 'shape': (0, 10000000000000, 10000000000000)}"),
            NPY,
            400,
        ),
        (as_npy(np.zeros((2, *SHAPE), np.int64)), NPY, 400),
        (as_npy(np.zeros((2, *SHAPE), ">f4")), NPY, 400),
        (form(*[b"x"] * 9), f"{FORM}; boundary=limit", 413),
        (form(), f"{FORM}; boundary=limit", 400),
        (form(SECRET), f"{FORM}; boundary=limit", 400),
        (form(b"x"), FORM, 400),
        (form(b"x"), f"{FORM}; boundary=", 400),
        (form(b"x"), f"{FORM}; boundary=" + "x" * 201, 400),
        (form(b"x")[:-6], f"{FORM}; boundary=limit", 400),
        (b"--limit\r\nno end of the headers\r\n--limit--", f"{FORM}; boundary=limit", 400),
        (b"x", "", 415),
        (b"x", SECRET.decode(), 415),
        (b"x", "text/plain; sesame", 415),
    ],
)
def test_a_body_with_invalid_images_is_refused(content: bytes, kind: str, status: int) -> None:
    assert refused(content, kind).status == status


def test_a_form_with_very_many_parts_is_refused_before_it_is_split() -> None:
    assert refused(form(*[b""] * 100_000), f"{FORM}; boundary=limit").status == 413


def test_an_image_with_too_many_pixels_is_refused() -> None:
    small = as_png(np.zeros((4, 3), np.uint8))
    size = b"IHDR" + struct.pack(">II", 9500, 9500) + small[24:29]
    content = small[:12] + size + struct.pack(">I", zlib.crc32(size)) + small[33:]
    assert "89,478,485 pixels" in str(refused(content, "image/png"))


def test_an_unusable_file_is_named_by_its_number_and_the_others_are_burned() -> None:
    arena = Arena()
    files = as_png(np.zeros((4, 3), np.uint8)), SECRET
    error = refused(form(*files), f"{FORM}; boundary=limit", memory=arena)
    assert str(error).startswith("Image 2 cannot be used: ")
    assert error.body["image"] == 2
    assert not arena.used


def test_files_are_decoded_where_they_are_without_a_copy_of_the_body() -> None:
    file = as_png(np.zeros((4, 3), np.uint8)) + bytes(10**7)  # decoders stop at the end of the image
    bodies = {"image/png": torch.frombuffer(bytearray(file), dtype=torch.uint8)}
    bodies[f"{FORM}; boundary=limit"] = torch.frombuffer(bytearray(form(file, file)), dtype=torch.uint8)
    for kind, body in bodies.items():
        tracemalloc.start()
        try:
            asyncio.run(decode_images(body, kind, Wanted(SHAPE, 8), Memory()))
            assert tracemalloc.get_traced_memory()[1] < 10**6
        finally:
            tracemalloc.stop()
