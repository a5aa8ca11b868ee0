"""Request bodies: reading them straight into the arena, and decoding the images in them."""

import asyncio
import contextlib
import io
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from starlette.requests import ClientDisconnect
from starlette.types import Receive
from torch import Tensor

from crodobo.config import Fit
from crodobo.core.memory import Memory
from crodobo.data.decode import MOST_PIXELS, decode
from crodobo.errors import BadImage
from crodobo.serve.decoding import group, measure
from crodobo.serve.errors import BadRequest, TooManyImages, UnusableImage

IMAGES = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff", "image/x-portable-anymap")
NPY, RAW, FORM = "application/x-npy", "application/octet-stream", "multipart/form-data"
NPY_VERSIONS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
NPY_HEADER_BYTES = 2**14  # numpy itself accepts at most 10,000
LARGEST_IMAGES = 8  # a request may have as many pixels as this many images of the largest size
PATIENCE = 5.0  # seconds that a body may take in any case
SLOWEST = 10_000  # bytes per second that must arrive after that

Place = Callable[[int], contextlib.AbstractAsyncContextManager[None]]  # holds a place for so many bytes
Result = TypeVar("Result")


class Wanted(NamedTuple):
    """What the images must become, how many there may be, and how many pixels a file may have."""

    shape: tuple[int, int, int]
    most: int
    fit: Fit = "squash"
    pixels: int = MOST_PIXELS


async def read_body(receive: Receive, length: int | None, limit: int, memory: Memory, seconds: float = 30.0) -> Tensor:
    """Read a body into the arena. Its length must be known in advance, because its memory is allocated first.

    Raises `TimeoutError` if it takes longer than `seconds`, or stops to arrive, or arrives too slowly.
    """
    if length is None:
        raise BadRequest("The request has no Content-Length.", "Send one; chunked bodies are refused.", status=411)
    if length > limit:
        raise BadRequest(f"The body is larger than {limit} bytes.", "Send fewer images at a time.", status=413)
    if length == 0:
        raise BadRequest("The request has no body.")
    body = memory.take(torch.zeros(length, dtype=torch.uint8))
    received, view, more = 0, body.numpy(), True
    started = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(min(seconds, PATIENCE)) as timer:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                more, end = message.get("more_body", False), received + len(message["body"])
                if end > length:
                    raise BadRequest("The body is longer than its Content-Length.")
                view[received:end] = np.frombuffer(message["body"], np.uint8)
                received = end
                del message  # a client may take long to send the next part, and this one is not in locked memory
                timer.reschedule(started + min(seconds, PATIENCE + received / SLOWEST))
        if received < length:
            raise BadRequest("The body is shorter than its Content-Length.")
    except BaseException:
        memory.burn([body])
        raise
    return body


def anywhere(_: int) -> contextlib.AbstractAsyncContextManager[None]:
    return contextlib.nullcontext()


async def decode_images(
    body: Tensor, content_type: str, wanted: Wanted, memory: Memory, dtype: str = "uint8", place: Place = anywhere
) -> Tensor:
    """Decode the images of a body into a batch with its own memory in the arena.

    Files are decoded in other threads, a few at a time. `place` holds a place for each of these groups.
    """
    name, _, parameters = content_type.partition(";")
    name = name.strip().lower()
    if name == RAW:
        return memory.take(_read_raw(body, wanted, dtype).clone())
    if name == NPY:
        return memory.take(_read_npy(body, wanted.most))
    if name == FORM:
        files = split_form(body.numpy().data, parameters, wanted.most)
    elif name in IMAGES:
        files = [body.numpy().data]
    else:
        remedy = f"Use one of {', '.join((*IMAGES, NPY, RAW, FORM))}."
        raise BadRequest("The Content-Type of the body is not supported.", remedy, status=415)
    async with place(0):
        sizes = await _in_thread(lambda: [measure(file) for file in files])
    if sum(size.pixels for size in sizes) > (most := LARGEST_IMAGES * wanted.pixels):
        raise BadRequest(f"The images have more than {most:,} pixels in all.", "Send fewer at a time.", status=413)
    batch = memory.take(torch.zeros((len(files), *wanted.shape), dtype=torch.uint8))
    done = 0
    try:
        for count in group(sizes):
            part = slice(done, done + count)
            async with place(sum(size.memory for size in sizes[part])):
                await _in_thread(partial(_decode_files, files, batch, part, wanted))
            done += count
    except BaseException:
        memory.burn([batch])
        raise
    return batch


async def _in_thread(work: Callable[[], Result]) -> Result:
    """Do something in a thread. If this is cancelled, wait for the thread, which goes on and uses the memory."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        raise


def _decode_files(files: list[memoryview], batch: Tensor, part: slice, wanted: Wanted) -> None:
    """Decode some of the files into their rows of the batch."""
    for index in range(part.start, part.stop):
        try:
            image = torch.from_numpy(decode(files[index], wanted.shape, wanted.fit, wanted.pixels))
        except BadImage as error:
            reason = error.problem.partition(" (")[0]  # the detail in parentheses may quote the file
            raise UnusableImage(index + 1, reason) from None
        batch[index].copy_(image)
        image.zero_()


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


def split_form(body: memoryview, parameters: str, most: int) -> list[memoryview]:
    """Split a form into its files, without a copy: the usual parsers write large ones to temporary files."""
    named = dict(part.strip().partition("=")[::2] for part in parameters.split(";"))
    boundary = next((text.strip('"') for name, text in named.items() if name.lower() == "boundary"), "")
    if not boundary or len(boundary) > 200:
        raise BadRequest("The Content-Type of the form has no valid boundary.")
    first = b"--" + boundary.encode(errors="replace")
    marks = [(0, len(first))] if bytes(body[: len(first)]) == first else []  # where each mark begins and ends
    later = re.compile(re.escape(b"\r\n" + first)).finditer(body)
    marks += [mark.span() for mark in itertools.islice(later, most + 2 - len(marks))]
    if len(marks) == most + 2:  # one mark before each file, and one after the last
        raise TooManyImages(most)
    parts = [body[end:start] for (_, end), (start, _) in itertools.pairwise(marks)]
    heads = [re.search(rb"\r\n\r\n", part) if bytes(part[:2]) == b"\r\n" else None for part in parts]
    if not parts or not all(heads) or bytes(body[marks[-1][1] :][:2]) != b"--":
        raise BadRequest("The form is incomplete.")
    return [part[head.end() :] for part, head in zip(parts, heads, strict=True) if head]


def overwrite_float_cache() -> None:
    """Overwrite the floats that CPython caches after they are freed, with their values."""
    numbers = [float(number) for number in range(256)]
    del numbers
