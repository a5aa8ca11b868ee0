"""Request bodies: reading them straight into the arena, and decoding the images in them."""

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
from crodobo.serve.errors import BadRequest, TooManyImages, UnusableImage

IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/x-portable-anymap")
NPY, RAW, FORM = "application/x-npy", "application/octet-stream", "multipart/form-data"
NPY_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEADER_BYTES = 2**14  # numpy itself accepts at most 10,000


class Wanted(NamedTuple):
    """What the images must become, how many there may be, and how many pixels a file may have."""

    shape: tuple[int, int, int]
    most: int
    fit: Fit = "squash"
    pixels: int = MOST_PIXELS


async def read_body(chunks: AsyncIterator[bytes], length: int | None, limit: int, memory: Memory) -> Tensor:
    """Read a body into the arena. Its length must be known in advance, because its memory is allocated first."""
    if length is None:
        raise BadRequest("The request has no Content-Length.", "Send one; chunked bodies are refused.", status=411)
    if length > limit:
        raise BadRequest(f"The body is larger than {limit} bytes.", "Send fewer images at a time.", status=413)
    if length == 0:
        raise BadRequest("The request has no body.")
    body = memory.take(torch.zeros(length, dtype=torch.uint8))
    received, view = 0, body.numpy()
    try:
        async for chunk in chunks:
            if received + len(chunk) > length:
                raise BadRequest("The body is longer than its Content-Length.")
            view[received : received + len(chunk)] = np.frombuffer(chunk, np.uint8)
            received += len(chunk)
        if received < length:
            raise BadRequest("The body is shorter than its Content-Length.")
    except BaseException:
        memory.burn([body])
        raise
    return body


async def decode_images(
    body: Tensor, content_type: str, wanted: Wanted, memory: Memory, dtype: str = "uint8"
) -> Tensor:
    """Decode the images of a body into a batch with its own memory in the arena."""
    name, _, parameters = content_type.partition(";")
    name = name.strip().lower()
    if name == RAW:
        return memory.take(_read_raw(body, wanted, dtype).clone())
    if name == NPY:
        return memory.take(_read_npy(body, wanted.most))
    if name == FORM:
        files = split_form(body.numpy().tobytes(), parameters, wanted.most)
    elif name in IMAGES:
        files = [body.numpy().tobytes()]
    else:
        remedy = f"Use one of {', '.join((*IMAGES, NPY, RAW, FORM))}."
        raise BadRequest("The Content-Type of the body is not supported.", remedy, status=415)
    work = asyncio.ensure_future(asyncio.to_thread(_decode_files, files, wanted, memory))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:  # the thread goes on, so its batch must be burned too
        with contextlib.suppress(Exception):
            memory.burn([await work])
        raise


def _decode_files(files: list[bytes], wanted: Wanted, memory: Memory) -> Tensor:
    batch = memory.take(torch.zeros((len(files), *wanted.shape), dtype=torch.uint8))
    try:
        for number, (file, row) in enumerate(zip(files, batch, strict=True), start=1):
            try:
                image = torch.from_numpy(decode(file, wanted.shape, wanted.fit, wanted.pixels))
            except BadImage as error:
                reason = error.problem.partition(" (")[0]  # the detail in parentheses may quote the file
                raise UnusableImage(number, reason) from None
            row.copy_(image)
            image.zero_()
    except BaseException:
        memory.burn([batch])
        raise
    return batch


def _read_raw(body: Tensor, wanted: Wanted, dtype: str) -> Tensor:
    kind = torch.float32 if dtype == "float32" else torch.uint8
    size = math.prod(wanted.shape) * kind.itemsize
    if len(body) % size:
        expected = f"{size} bytes ({'×'.join(map(str, wanted.shape))}, {dtype})"
        raise BadRequest(f"The length of the body is not a multiple of one image, which has {expected}.")
    if len(body) // size > wanted.most:
        raise TooManyImages(wanted.most)
    return body.view(kind).reshape(-1, *wanted.shape)


def _read_npy(body: Tensor, most: int) -> Tensor:
    """Read an array in numpy's format. Its header is checked before memory is allocated for the array."""
    content = body.numpy()
    header = io.BytesIO(content[:NPY_HEADER_BYTES].tobytes())
    try:
        shape, by_columns, dtype = NPY_VERSIONS[np.lib.format.read_magic(header)](header)
    except Exception:  # a hostile header may raise anything
        raise BadRequest("The body is not an array in numpy's format.") from None
    if dtype not in (np.uint8, np.float32, np.float64) or len(shape) not in (3, 4):
        raise BadRequest("The array must hold uint8 or float32 images: samples × channels × height × width.")
    if min(shape) < 1 or math.prod(shape) * dtype.itemsize != len(content) - header.tell():
        raise BadRequest("The size of the array does not match its shape.")
    array = content[header.tell() :].view(dtype).reshape(shape, order="F" if by_columns else "C")
    array = array[None] if array.ndim == 3 else array
    if len(array) > most:
        raise TooManyImages(most)
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, and are refused as such
        return torch.from_numpy(array.astype(np.uint8 if dtype == np.uint8 else np.float32, order="C"))


def split_form(body: bytes, parameters: str, most: int) -> list[bytes]:
    """Split a form into its files, in memory: the usual parsers write large ones to temporary files."""
    named = dict(part.strip().partition("=")[::2] for part in parameters.split(";"))
    boundary = next((text.strip('"') for name, text in named.items() if name.lower() == "boundary"), "")
    if not boundary or len(boundary) > 200:
        raise BadRequest("The Content-Type of the form has no valid boundary.")
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary.encode(errors="replace"), most + 2)
    if len(parts) > most + 2:  # one part before the first file, one after the last
        raise TooManyImages(most)
    files = parts[1:-1]
    complete = all(part.startswith(b"\r\n") and b"\r\n\r\n" in part for part in files)
    if not files or not complete or not parts[-1].startswith(b"--"):
        raise BadRequest("The form is incomplete.")
    return [part.partition(b"\r\n\r\n")[2] for part in files]


def overwrite_float_cache() -> None:
    """Overwrite the floats that CPython caches after they are freed, with their values."""
    numbers = [float(number) for number in range(256)]
    del numbers
