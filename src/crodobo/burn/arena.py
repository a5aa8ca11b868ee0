"""Memory for queries that is never written to swap, left out of core dumps, and empty in a forked process."""

import ctypes
import mmap
import os
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crodobo.core.memory import Burned, Memory, extent
from crodobo.errors import NotHardened

ALIGNMENT = 64  # bytes; what vector instructions like best
SMALLEST = 2**20  # bytes that are asked of the system at a time
SPARE = 256 * 2**20  # bytes that are kept when nobody uses them
MADV_WIPEONFORK = 18  # of Linux; the mmap module does not name it


@dataclass(eq=False)
class _Chunk:
    """A stretch of memory from the system, and the holes in it."""

    map: mmap.mmap
    address: int
    holes: list[tuple[int, int]] = field(default_factory=list)  # offset and size, in order

    @property
    def is_free(self) -> bool:
        """Whether nothing is in it."""
        return self.holes == [(0, len(self.map))]

    def cut(self, size: int) -> int | None:
        """The offset of so many bytes that are free no more."""
        for number, (offset, room) in enumerate(self.holes):
            if room >= size:
                self.holes[number : number + 1] = [(offset + size, room - size)] if room > size else []
                return offset
        return None

    def give_back(self, offset: int, size: int) -> None:
        """Let bytes be free again, and join holes that touch."""
        joined: list[tuple[int, int]] = []
        for start, room in sorted([*self.holes, (offset, size)]):
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + room)
            else:
                joined.append((start, room))
        self.holes = joined


class Arena(Memory):
    """Holds a query's tensors in memory of their own: locked, not dumped, wiped on fork.

    A tensor that is taken over is copied into the arena, and the original is overwritten at once. The arena grows as
    queries need it, and gives room that was burned to the next one.

    Examples
    --------
    >>> arena, images = Arena(), torch.ones(2, 3)
    >>> held = arena.take(images)
    >>> int(images.sum()), int(held.sum())
    (0, 6)
    >>> arena.burn([held]).wiped, int(held.sum())
    (24, 0)
    """

    def __init__(self) -> None:
        self._chunks = [_ask_for(SMALLEST)]  # so that it is known at once if the system does not grant it
        self._taken: dict[int, tuple[_Chunk, int, int]] = {}  # by address: where a tensor lies, and its room
        self._lock = threading.Lock()  # the next query is made while one is at work

    @property
    def size(self) -> int:
        """Bytes that the arena has from the system."""
        return sum(len(chunk.map) for chunk in self._chunks)

    def take(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad or not tensor.numel() or self._holds(tensor):
            return tensor  # a copy would leave the gradient's graph; it is overwritten where it lies
        held = self._place(tensor)
        with torch.inference_mode():
            held.copy_(tensor)
            tensor.zero_()
        return held

    def burn(self, tensors: list[Tensor]) -> Burned:
        burned = super().burn(tensors)
        with self._lock:
            for tensor in tensors:
                if place := self._taken.pop(tensor.data_ptr(), None):
                    chunk, offset, room = place
                    chunk.give_back(offset, room)
            self._return_spare()
        return burned

    def _return_spare(self) -> None:
        """Give memory that nobody uses back to the system, but for some that the next queries will want."""
        spare = sum(len(chunk.map) for chunk in self._chunks if chunk.is_free)
        for chunk in reversed(self._chunks[1:]):
            if spare <= SPARE:
                return
            if chunk.is_free:
                self._chunks.remove(chunk)
                spare -= len(chunk.map)

    def _holds(self, tensor: Tensor) -> bool:
        address = tensor.data_ptr()
        return any(chunk.address <= address < chunk.address + len(chunk.map) for chunk in tuple(self._chunks))

    def _place(self, tensor: Tensor) -> Tensor:
        """Room for a tensor, laid out as it is."""
        layout = torch.empty_like(tensor, device="meta")
        room = -(-extent(layout) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            chunk, offset = self._find(room)
            self._taken[chunk.address + offset] = (chunk, offset, room)
        flat = torch.frombuffer(chunk.map, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        return flat.as_strided(layout.shape, layout.stride())

    def _find(self, room: int) -> tuple[_Chunk, int]:
        for chunk in self._chunks:
            if (offset := chunk.cut(room)) is not None:
                return chunk, offset
        chunk = _ask_for(-(-max(room, SMALLEST) // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._chunks.append(chunk)
        offset = chunk.cut(room)
        assert offset is not None
        return chunk, offset


def _ask_for(size: int) -> _Chunk:
    """Memory from the system with all protections, or `NotHardened`."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        memory.madvise(mmap.MADV_DONTDUMP)
        memory.madvise(MADV_WIPEONFORK)
    except (AttributeError, OSError):
        raise NotHardened(
            "strict burning needs memory that is left out of core dumps and of forked processes, which this system has "
            "not (Linux 4.14 or newer does); choose --burn standard, which overwrites what it owns"
        ) from None
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        reason = os.strerror(ctypes.get_errno())
        raise NotHardened(
            f"{size / 2**20:.0f} MB for queries cannot be locked in memory ({reason}), so they might reach the swap; "
            "raise the limit (ulimit -l, LimitMEMLOCK= of a systemd service), use smaller queries, or choose "
            "--burn standard"
        )
    return _Chunk(memory, address, [(0, size)])
