"""Have another process search this one's memory.

Only the other process knows the needles. In this process the search would find the needles themselves.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict

from crodobo.burn.canary import Canary
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Find, Scan, scan
from crodobo.errors import CrodoboError

NOT_INHERITED = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES", "PYTHONMALLOC")  # slow, and nothing to protect


def scan_from_outside(memory: ProcessMemory, seed: str, mean: list[float], std: list[float]) -> Scan:
    """Have another process search the memory for the canary of this seed."""
    request = {"maps": memory.maps, "mem": memory.mem, "seed": seed, "mean": mean, "std": std}
    environment = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    answer = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request).encode(),
        stdout=subprocess.PIPE,
        pass_fds=(memory.maps, memory.mem),
        env=environment,
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
