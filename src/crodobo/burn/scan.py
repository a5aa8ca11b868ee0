"""Search all memory of a process for needles."""

import time
from dataclasses import dataclass, field

from crodobo.burn.canary import Needle
from crodobo.burn.process import CHUNK, ProcessMemory
from crodobo.burn.searcher import Searcher


@dataclass(frozen=True)
class Find:
    """Bytes of one form in one region, and the address of the first."""

    form: str
    region: str
    address: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.bytes} bytes as {self.form} in {self.region}, from {self.address:#x}"


@dataclass
class Scan:
    """The result of a search."""

    scanned: int = 0
    regions: int = 0
    unreadable: list[str] = field(default_factory=list)
    finds: list[Find] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def found(self) -> int:
        """Bytes found, in any form."""
        return sum(find.bytes for find in self.finds)

    def as_numbers(self) -> dict[str, float]:
        """The numbers for a receipt."""
        unreadable = len(self.unreadable)
        return {"found": self.found, "scanned": self.scanned, "regions": self.regions, "unreadable": unreadable}


def scan(memory: ProcessMemory, needles: list[Needle]) -> Scan:
    """Search everything that the process can write to."""
    started, result, searcher = time.monotonic(), Scan(), Searcher(needles)
    for region in memory.regions():
        result.regions += 1
        places: dict[str, list[tuple[int, int]]] = {}  # start and end of each find, by form
        try:
            for address, content in memory.read(region, overlap=searcher.longest - 1):
                result.scanned += min(CHUNK, len(content))
                for needle, position in searcher.find(content):
                    if position < CHUNK:  # a needle that begins in the next chunk is counted there
                        start = address + position
                        places.setdefault(needle.form, []).append((start, start + len(needle.content)))
        except OSError:
            result.unreadable.append(region.name)
        result.finds += [Find(form, region.name, min(found)[0], _bytes_in(found)) for form, found in places.items()]
    result.seconds = time.monotonic() - started
    return result


def _bytes_in(places: list[tuple[int, int]]) -> int:
    """The bytes in ranges that may overlap."""
    total = covered = 0
    for start, end in sorted(places):
        total += max(0, end - max(start, covered))
        covered = max(covered, end)
    return total
