"""Places for decoding image files, because a small file can be a large image.

A few files are decoded at a time, in a bounded amount of memory, and no client can have all places.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from PIL import Image

from crodobo.data.decode import FORMATS
from crodobo.data.dicom import dicom_pixels
from crodobo.data.formats import is_dicom
from crodobo.data.memory_file import open_memory
from crodobo.serve.errors import Busy
from crodobo.serve.turns import Turns

PLACES = 4  # files decoded at a time
OWN_PLACES = 2  # of one client
# Bytes per pixel while an image is decoded. Pillow stores colours in 4 bytes; transparency needs two more images.
PLAIN, NUMBERS, TRANSPARENT = 8, 9, 13
MEASURED = 24  # the same for DICOM, whose values are floats for a while
BUDGET = 16  # bytes per pixel of the largest image: for that image and some smaller ones of other clients
GROUP = 2**24  # bytes; small files are decoded together


class Size(NamedTuple):
    """The size of an image: its pixels, and the bytes that decoding takes."""

    pixels: int
    memory: int


def measure(content: memoryview) -> Size:
    """The size of an image by the header of its file. A file that cannot be decoded has none.

    >>> measure(memoryview(b"no picture"))
    Size(pixels=0, memory=0)
    """
    try:
        if is_dicom(content):
            return Size(pixels := dicom_pixels(content), pixels * MEASURED)
        with Image.open(open_memory(content), formats=FORMATS) as image:
            pixels, mode = image.width * image.height, image.mode
            transparent = "A" in mode or "a" in mode or "transparency" in image.info
    except Exception:  # decoding it will say what is wrong
        return Size(0, 0)
    return Size(pixels, pixels * (TRANSPARENT if transparent else NUMBERS if mode[0] in "IF" else PLAIN))


def group(sizes: Sequence[Size]) -> list[int]:
    """How many files are decoded together, in their order: small ones share a place, a large one has its own.

    >>> group([Size(100, 800), Size(100, 800), Size(10**7, 8 * 10**7), Size(100, 800)])
    [2, 1, 1]
    """
    counts, used = list[int](), 0
    for size in sizes:
        if counts and used + size.memory <= GROUP:
            counts[-1] += 1
            used += size.memory
        else:
            counts.append(1)
            used = size.memory
    return counts


@dataclass(eq=False)
class Waiting:
    """Files that wait for a place."""

    owner: str
    memory: int
    granted: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Decoders:
    """The places where files are decoded. Clients take turns, and each has at most two places and one largest image.

    `expected_wait` gives the seconds after which a client that got no place may try again.
    """

    def __init__(self, max_pixels: int, expected_wait: Callable[[], float] = lambda: 1.0) -> None:
        self.memory, self.own_memory = BUDGET * max_pixels, TRANSPARENT * max_pixels
        self.expected_wait = expected_wait
        self._used = 0  # bytes
        self._places: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._waiting: Turns[Waiting] = Turns()

    @contextlib.asynccontextmanager
    async def place(self, owner: str, memory: int, until: float) -> AsyncIterator[None]:
        """Wait for a place, until a time of the monotonic clock, and hold it during the block."""
        waiting = Waiting(owner, min(memory, self.own_memory))
        self._waiting.add(owner, waiting)
        self._grant()
        try:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await waiting.granted
            except TimeoutError:
                raise Busy("Too many files are waiting to be decoded.", retry_after=self.expected_wait()) from None
            yield
        finally:
            self._waiting.remove(owner, waiting)
            if waiting.granted.done() and not waiting.granted.cancelled():
                self._count(waiting, -1)
            self._grant()

    def _grant(self) -> None:
        """Give free places to those whose turn it is. One that waits for memory must not be overtaken by all others."""
        while self._places.total() < PLACES:
            heads = (line[0] for line in self._waiting.lines())
            one = next((head for head in heads if self._may_have(head)), None)
            if one is None or self._used + one.memory > self.memory:
                return
            self._waiting.take(one.owner, one)
            if not one.granted.done():
                self._count(one, 1)
                one.granted.set_result(None)

    def _may_have(self, one: Waiting) -> bool:
        own = self._bytes[one.owner] + one.memory
        return self._places[one.owner] < OWN_PLACES and own <= self.own_memory

    def _count(self, one: Waiting, change: int) -> None:
        self._used += change * one.memory
        for counter, amount in ((self._places, 1), (self._bytes, one.memory)):
            counter[one.owner] += change * amount
            if not counter[one.owner]:
                del counter[one.owner]
