"""Search all memory of a process for needles, also from another process.

A process that searched its own memory would find the needles themselves. So another one searches it for a canary, and
this one never knows the needles.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace

from crodobo.burn.canary import Canary, Needle
from crodobo.burn.process import CHUNK, ProcessMemory
from crodobo.errors import CrodoboError

NOT_INHERITED = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES", "PYTHONMALLOC")  # slow, and nothing to protect


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
                        first = Find(needle.form, region.name, address + content.find(needle.content), 0)
                        find = finds.get(needle.form, first)
                        finds[needle.form] = replace(find, bytes=find.bytes + count * len(needle.content))
        except OSError:
            result.unreadable.append(region.name)
        result.finds += finds.values()
    result.seconds = time.monotonic() - started
    return result


def scan_from_outside(memory: ProcessMemory, seed: str, mean: list[float], std: list[float]) -> Scan:
    """Have another process search the memory for the canary of this seed."""
    request = {"maps": memory.maps, "mem": memory.mem, "seed": seed, "mean": mean, "std": std}
    answer = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request).encode(),
        stdout=subprocess.PIPE,
        pass_fds=(memory.maps, memory.mem),
        env={name: value for name, value in os.environ.items() if name not in NOT_INHERITED},
    )
    if answer.returncode:
        raise CrodoboError("The process that searches the memory failed.", "Its own message is printed above.")
    data = json.loads(answer.stdout)
    return Scan(**data | {"finds": [Find(**find) for find in data["finds"]]})


def main() -> None:
    """The other process: reads a request from standard input, prints the result."""
    request = json.load(sys.stdin)
    needles = Canary(request["seed"]).needles(len(request["mean"]), request["mean"], request["std"])
    json.dump(asdict(scan(ProcessMemory(request["maps"], request["mem"]), needles)), sys.stdout)


if __name__ == "__main__":
    main()
