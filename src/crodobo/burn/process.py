"""Read the memory of a process through /proc."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from crodobo.errors import BadData

CHUNK = 16 * 2**20  # bytes read at a time


@dataclass(frozen=True)
class Region:
    """A range of addresses that the process can write to, and its name."""

    start: int
    end: int
    name: str


class ProcessMemory:
    """All memory that a process can write to.

    Holds two open files. They keep giving access after the process has closed itself to others.
    """

    def __init__(self, maps: int, mem: int) -> None:
        self.maps, self.mem = maps, mem

    @classmethod
    def of(cls, process: int | str) -> "ProcessMemory":
        """The memory of the process with this number, or of this process (`self`)."""
        opened: list[int] = []
        try:
            opened += (os.open(f"/proc/{process}/{name}", os.O_RDONLY) for name in ("maps", "mem"))
        except FileNotFoundError:
            raise BadData(f"There is no process {process}.", "Find its number with `ps`.") from None
        except PermissionError:
            for descriptor in opened:
                os.close(descriptor)
            reason = "it is closed to others, or belongs to another user"
            problem = f"The memory of process {process} is not readable: {reason}."
            raise BadData(problem, "Run the search as root.") from None
        return cls(*opened)

    def close(self) -> None:
        os.close(self.maps)
        os.close(self.mem)

    def regions(self) -> list[Region]:
        """The regions at this moment."""
        with open(self.maps, errors="replace", closefd=False) as file:
            file.seek(0)
            lines = file.readlines()
        regions = []
        for line in lines:
            extent, permissions, _, _, _, *name = line.split(maxsplit=5)
            start, end = (int(bound, 16) for bound in extent.split("-"))
            if permissions.startswith("rw"):
                regions.append(Region(start, end, name[0].strip() if name else "anonymous memory"))
        return regions

    def read(self, region: Region, overlap: int) -> Iterator[tuple[int, bytes]]:
        """Chunks of a region with their addresses. Each chunk extends `overlap` bytes into the next.

        Raises OSError if the system refuses to read the region.
        """
        for address in range(region.start, region.end, CHUNK):
            wanted = min(CHUNK + overlap, region.end - address)
            content = os.pread(self.mem, wanted, address)
            yield address, content
            if len(content) < wanted:
                return
