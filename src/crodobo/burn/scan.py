"""Search all memory of a process for needles."""

import time
from dataclasses import dataclass, field

from crodobo.burn.canary import Needle
from crodobo.burn.process import CHUNK, ProcessMemory


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
    started, result = time.monotonic(), Scan()
    overlap = max(len(needle.content) for needle in needles) - 1
    for region in memory.regions():
        result.regions += 1
        finds: dict[str, Find] = {}
        try:
            for address, content in memory.read(region, overlap):
                result.scanned += min(CHUNK, len(content))
                for needle in needles:
                    end = CHUNK + len(needle.content) - 1  # a needle that begins in the next chunk is counted there
                    if count := content.count(needle.content, 0, end):
                        before = finds.get(needle.form)
                        first = before.address if before else address + content.find(needle.content)
                        size = count * len(needle.content) + (before.bytes if before else 0)
                        finds[needle.form] = Find(needle.form, region.name, first, size)
        except OSError:
            result.unreadable.append(region.name)
        result.finds += finds.values()
    result.seconds = time.monotonic() - started
    return result
