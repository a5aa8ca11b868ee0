"""Memory for queries that is locked against swapping, left out of core dumps, and empty in a forked process."""

import ctypes
import mmap
import os
import threading
from dataclasses import dataclass, field

import torch
from torch import Tensor

from crodobo.core.memory import Burned, Memory, extent
from crodobo.errors import NotHardened

ALIGNMENT = 64  # bytes, for vector instructions
SMALLEST = 2**20  # bytes: the smallest chunk requested from the system
SPARE = 256 * 2**20  # bytes of unused memory to keep
MADV_WIPEONFORK = 18  # of Linux; missing in the mmap module


@dataclass(eq=False)
class _Chunk:
    """Memory from the system, and the free ranges in it."""

    map: mmap.mmap
    address: int
    free_ranges: list[tuple[int, int]] = field(default_factory=list)  # (offset, size), sorted

    @property
    def is_free(self) -> bool:
        return self.free_ranges == [(0, len(self.map))]

    def allocate(self, size: int) -> int | None:
        """Reserve bytes. Returns their offset, or None if no free range is large enough."""
        for index, (offset, available) in enumerate(self.free_ranges):
            if available >= size:
                rest = [(offset + size, available - size)] if available > size else []
                self.free_ranges[index : index + 1] = rest
                return offset
        return None

    def release(self, offset: int, size: int) -> None:
        """Free bytes, and merge adjacent free ranges."""
        merged: list[tuple[int, int]] = []
        for start, available in sorted([*self.free_ranges, (offset, size)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + available)
            else:
                merged.append((start, available))
        self.free_ranges = merged


class Arena(Memory):
    """Holds the tensors of queries in memory that is locked, not dumped, and wiped on fork.

    `take` copies a tensor into the arena and overwrites the original at once. The arena grows on demand and reuses the
    memory of burned queries.

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
        self._chunks = [_map_chunk(SMALLEST)]  # fail now if the system refuses locked memory
        self._allocations: dict[int, tuple[_Chunk, int, int]] = {}  # address of a tensor: chunk, offset, size
        self._lock = threading.Lock()  # the next query is read while one is being processed

    @property
    def size(self) -> int:
        """Bytes that the arena holds."""
        return sum(len(chunk.map) for chunk in self._chunks)

    def take(self, tensor: Tensor) -> Tensor:
        if tensor.requires_grad or not tensor.numel() or self._contains(tensor):
            return tensor  # a copy would leave the autograd graph; burning overwrites the tensor in place
        held = self._allocate_like(tensor)
        with torch.inference_mode():
            held.copy_(tensor)
            tensor.zero_()
        return held

    def burn(self, tensors: list[Tensor]) -> Burned:
        burned = super().burn(tensors)
        with self._lock:
            for tensor in tensors:
                if allocation := self._allocations.pop(tensor.data_ptr(), None):
                    chunk, offset, size = allocation
                    chunk.release(offset, size)
            self._return_spare()
        return burned

    def _return_spare(self) -> None:
        """Return unused memory to the system, except what the next queries will probably need."""
        spare = sum(len(chunk.map) for chunk in self._chunks if chunk.is_free)
        for chunk in reversed(self._chunks[1:]):
            if spare <= SPARE:
                return
            if chunk.is_free:
                self._chunks.remove(chunk)
                spare -= len(chunk.map)

    def _contains(self, tensor: Tensor) -> bool:
        address = tensor.data_ptr()
        return any(chunk.address <= address < chunk.address + len(chunk.map) for chunk in tuple(self._chunks))

    def _allocate_like(self, tensor: Tensor) -> Tensor:
        """An uninitialised tensor in the arena, with the same shape and strides."""
        layout = torch.empty_like(tensor, device="meta")
        size = -(-extent(layout) // ALIGNMENT) * ALIGNMENT
        with self._lock:
            chunk, offset = self._allocate(size)
            self._allocations[chunk.address + offset] = (chunk, offset, size)
        flat = torch.frombuffer(chunk.map, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        return flat.as_strided(layout.shape, layout.stride())

    def _allocate(self, size: int) -> tuple[_Chunk, int]:
        for chunk in self._chunks:
            if (offset := chunk.allocate(size)) is not None:
                return chunk, offset
        chunk = _map_chunk(-(-max(size, SMALLEST) // mmap.PAGESIZE) * mmap.PAGESIZE)
        self._chunks.append(chunk)
        offset = chunk.allocate(size)
        assert offset is not None
        return chunk, offset


def _map_chunk(size: int) -> _Chunk:
    """Request protected memory from the system. Raises `NotHardened` if any protection is refused."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        memory.madvise(mmap.MADV_DONTDUMP)
        memory.madvise(MADV_WIPEONFORK)
    except (AttributeError, OSError):
        raise NotHardened(
            "This system cannot keep memory out of core dumps and forked processes.",
            "Use Linux 4.14 or newer, or choose standard burning.",
            settings=("burn",),
        ) from None
    if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(size)):
        reason = os.strerror(ctypes.get_errno())
        raise NotHardened(
            f"{size / 2**20:.0f} MB for queries cannot be locked in memory ({reason}) and could be swapped out.",
            "Raise the limit (ulimit -l, or LimitMEMLOCK= of a systemd service), use smaller queries, or choose "
            "standard burning.",
            settings=("query_size", "burn"),
        )
    return _Chunk(memory, address, [(0, size)])
