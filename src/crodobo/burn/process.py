"""The memory of a process, read through the system."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from crodobo.errors import BadData

CHUNK = 16 * 2**20  # bytes that are read at a time


@dataclass(frozen=True)
class Region:
    """A stretch of memory that the process can write to, and what it is."""

    start: int
    end: int
    name: str


class ProcessMemory:
    """All memory that a process can write to.

    Holds two open files, which go on giving access when the process has been closed to others since.

    >>> own = ProcessMemory.of("self")
    >>> any(region.name == "[stack]" for region in own.regions())
    True
    >>> own.close()
    """

    def __init__(self, maps: int, mem: int) -> None:
        self.maps, self.mem = maps, mem

    @classmethod
    def of(cls, process: int | str) -> "ProcessMemory":
        """The memory of the process with this number, or of this one (`self`)."""
        opened: list[int] = []
        try:
            opened += (os.open(f"/proc/{process}/{name}", os.O_RDONLY) for name in ("maps", "mem"))
        except FileNotFoundError:
            raise BadData(f"there is no process {process}; see its number with `ps`") from None
        except PermissionError:
            for descriptor in opened:
                os.close(descriptor)
            raise BadData(
                f"the memory of process {process} may not be read: it has closed itself to others, or belongs to "
                "somebody else; root may"
            ) from None
        return cls(*opened)

    def close(self) -> None:
        """Let the files go."""
        os.close(self.maps)
        os.close(self.mem)

    def regions(self) -> list[Region]:
        """The stretches as they are now."""
        os.lseek(self.maps, 0, os.SEEK_SET)
        text = b""
        while part := os.read(self.maps, 2**20):
            text += part
        regions = []
        for line in text.decode(errors="replace").splitlines():
            extent, permissions, _, _, _, *name = line.split(maxsplit=5)
            start, end = (int(bound, 16) for bound in extent.split("-"))
            if permissions.startswith("rw"):
                regions.append(Region(start, end, name[0].strip() if name else "anonymous memory"))
        return regions

    def read(self, region: Region, overlap: int) -> Iterator[tuple[int, bytes]]:
        """Pieces of a region with their addresses; each goes on for `overlap` bytes into the next.

        Raises OSError where the system does not give it out.
        """
        for address in range(region.start, region.end, CHUNK):
            wanted = min(CHUNK + overlap, region.end - address)
            content = os.pread(self.mem, wanted, address)
            yield address, content
            if len(content) < wanted:
                return
