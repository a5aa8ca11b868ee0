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
    """Memory from the system, and the sizes of the tensors in it by their offsets."""

    map: mmap.mmap
    address: int
    used: dict[int, int] = field(default_factory=dict)

    def allocate(self, size: int) -> int | None:
        """Reserve bytes in the first gap that is large enough. Returns their offset, or None."""
        start = 0
        for offset, length in sorted([*self.used.items(), (len(self.map), 0)]):
            if offset - start >= size:
                self.used[start] = size
                return start
            start = offset + length
        return None


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
        self._lock = threading.Lock()  # the next query is read while one is being processed

    @property
    def size(self) -> int:
        """Bytes that the arena holds."""
        return sum(len(chunk.map) for chunk in self._chunks)

    @property
    def used(self) -> int:
        """Bytes of tensors that are not burned yet."""
        return sum(sum(chunk.used.values()) for chunk in self._chunks)

    def reserve(self, size: int) -> None:
        """Lock this many bytes now, so that a limit of the system is an error now and not in the middle of a stream."""
        with self._lock:
            if size > self.size:
                self._chunks.append(_map_chunk(size))

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
                for chunk in self._chunks:
                    chunk.used.pop(tensor.data_ptr() - chunk.address, None)
            self._return_spare()
        return burned

    def _return_spare(self) -> None:
        """Return unused memory to the system, except what the next queries will probably need."""
        spare = sum(len(chunk.map) for chunk in self._chunks if not chunk.used)
        for chunk in reversed(self._chunks[1:]):
            if spare <= SPARE:
                return
            if not chunk.used:
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
            for chunk in self._chunks:
                if (offset := chunk.allocate(size)) is not None:
                    break
            else:
                chunk, offset = _map_chunk(max(size, SMALLEST)), 0
                chunk.used[offset] = size
                self._chunks.append(chunk)
        flat = torch.frombuffer(chunk.map, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
        return flat.as_strided(layout.shape, layout.stride())


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
    return _Chunk(memory, address)
