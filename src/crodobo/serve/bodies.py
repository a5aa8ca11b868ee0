"""Bodies of requests: read straight into the arena, and what images they hold."""

import asyncio
import contextlib
import io
import math
from collections.abc import AsyncIterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from crodobo.config import Fit
from crodobo.core.memory import Memory
from crodobo.data.decode import MOST_PIXELS, decode
from crodobo.errors import BadImage
from crodobo.serve.errors import BadRequest

IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/x-portable-anymap")
NPY, RAW, FORM = "application/x-npy", "application/octet-stream", "multipart/form-data"
NPY_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEAD = 2**14  # bytes that a description can have; numpy itself takes no more than 10,000


class Limits(NamedTuple):
    """How many images a request may have, and how many pixels an image."""

    images: int
    pixels: int = MOST_PIXELS


async def read_body(chunks: AsyncIterator[bytes], length: int | None, limit: int, memory: Memory) -> Tensor:
    """A body as bytes in the arena. It has to say how long it is, so that there is room for it before it comes."""
    if length is None:
        raise BadRequest("the request must say how long its body is (Content-Length)", 411)
    if length > limit:
        raise BadRequest(f"the body is larger than {limit} bytes; send fewer images at a time", 413)
    if length == 0:
        raise BadRequest("the request has no body")
    body = memory.take(torch.zeros(length, dtype=torch.uint8))
    place, view = 0, body.numpy()
    try:
        async for chunk in chunks:
            if place + len(chunk) > length:
                raise BadRequest("the body is longer than Content-Length says")
            view[place : place + len(chunk)] = np.frombuffer(chunk, np.uint8)
            place += len(chunk)
        if place < length:
            raise BadRequest("the body is shorter than Content-Length says")
    except BaseException:
        memory.burn([body])
        raise
    return body


async def images_of(
    body: Tensor, kind: str, shape: tuple[int, int, int], fit: Fit, memory: Memory, limits: Limits, dtype: str = "uint8"
) -> Tensor:
    """The images of a body of this type, as a batch of their own in the arena."""
    most = limits.images
    name, _, rest = kind.partition(";")
    name = name.strip().lower()
    if name == RAW:
        return memory.take(_raw(body, shape, dtype, most).clone())
    if name == NPY:
        return memory.take(_npy(body, most))
    if name == FORM:
        files = split_form(body.numpy().tobytes(), rest, most)
    elif name in IMAGES:
        files = [body.numpy().tobytes()]
    else:
        known = ", ".join((*IMAGES, NPY, RAW, FORM))
        raise BadRequest(f"a body of this type cannot be read; the types are {known}", 415)
    work = asyncio.ensure_future(asyncio.to_thread(_decoded, files, shape, fit, memory, limits.pixels))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:  # the thread goes on; what it has made then is burned too
        with contextlib.suppress(Exception):
            memory.burn([await work])
        raise


def _decoded(files: list[bytes], shape: tuple[int, int, int], fit: Fit, memory: Memory, most: int) -> Tensor:
    batch = memory.take(torch.zeros((len(files), *shape), dtype=torch.uint8))
    try:
        for number, (file, place) in enumerate(zip(files, batch, strict=True), start=1):
            try:
                pixels = torch.from_numpy(decode(file, shape, fit, most))
            except BadImage as error:
                raise BadRequest(f"image {number} cannot be used: {str(error).split(' (')[0]}") from None
            place.copy_(pixels)
            pixels.zero_()
    except BaseException:
        memory.burn([batch])
        raise
    return batch


def _raw(body: Tensor, shape: tuple[int, ...], dtype: str, most: int) -> Tensor:
    kinds = {"uint8": torch.uint8, "float32": torch.float32}
    if dtype not in kinds:
        raise BadRequest("dtype must be uint8 or float32")
    size = math.prod(shape) * kinds[dtype].itemsize
    if len(body) % size:
        raise BadRequest(f"the body is not a whole number of images of {size} bytes ({'×'.join(map(str, shape))})")
    if len(body) // size > most:
        raise BadRequest(f"a request has 1 to {most} images; send more in several requests", 413)
    return body.view(kinds[dtype]).reshape(-1, *shape)


def _npy(body: Tensor, most: int) -> Tensor:
    """An array in numpy's format. Its description is checked before there is room made for what it describes."""
    content = body.numpy()
    head = io.BytesIO(content[:NPY_HEAD].tobytes())
    try:
        shape, by_columns, dtype = NPY_VERSIONS[np.lib.format.read_magic(head)](head)
    except Exception:  # what a hostile description raises is anyone's guess
        raise BadRequest("the body is no array of numbers in numpy's format") from None
    if dtype not in (np.uint8, np.float32, np.float64) or len(shape) not in (3, 4):
        raise BadRequest("the array must be images of uint8 or float32: samples × channels × height × width")
    if min(shape) < 1 or math.prod(shape) * dtype.itemsize != len(content) - head.tell():
        raise BadRequest("the array has not as many numbers as its shape says")
    array = content[head.tell() :].view(dtype).reshape(shape, order="F" if by_columns else "C")
    array = array[None] if array.ndim == 3 else array
    if not 0 < len(array) <= most:
        raise BadRequest(f"a request has 1 to {most} images; send more in several requests", 413 if len(array) else 400)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused as such
        return torch.from_numpy(array.astype(np.uint8 if dtype == np.uint8 else np.float32, order="C"))


def split_form(body: bytes, parameters: str, most: int) -> list[bytes]:
    """The files of a form, in memory: the usual parsers put large ones into temporary files.

    >>> split_form(b'--x\\r\\nContent-Disposition: form-data\\r\\n\\r\\nfirst\\r\\n--x--\\r\\n', ' boundary=x', most=1)
    [b'first']
    """
    named = dict(part.strip().partition("=")[::2] for part in parameters.split(";"))
    boundary = next((text.strip('"') for name, text in named.items() if name.lower() == "boundary"), "")
    if not boundary or len(boundary) > 200:
        raise BadRequest("the form names no boundary")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"), most + 2)
    if len(parts) > most + 2:  # a part before the first file, and one after the last
        raise BadRequest(f"a request has 1 to {most} images; send more in several requests", 413)
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        raise BadRequest("the form is not whole")
    files = []
    for part in parts[1:-1]:
        _, found, content = part.partition(b"\r\n\r\n")
        if not found or not part.startswith(b"\r\n"):
            raise BadRequest("the form is not whole")
        files.append(content)
    return files


def flush_free_lists() -> None:
    """Python keeps a hundred numbers that were let go, with their values; let them be others."""
    numbers = [float(number) for number in range(256)]
    del numbers
