"""A search of this process's memory by another one.

The other process has the needles, and this one does not: it could find them in its own hands only.
"""

import json
import os
import subprocess
import sys

from crodobo.burn.canary import Canary
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Scan, scan
from crodobo.errors import CrodoboError

ONLY_AT_START = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES", "PYTHONMALLOC")  # slow, and there is nothing to protect


def scan_from_outside(memory: ProcessMemory, seed: str, mean: list[float], std: list[float]) -> Scan:
    """Have another process search the memory for the canary of this seed."""
    request = {"maps": memory.maps, "mem": memory.mem, "seed": seed, "mean": mean, "std": std}
    environment = {name: value for name, value in os.environ.items() if name not in ONLY_AT_START}
    answer = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(request).encode(),
        stdout=subprocess.PIPE,
        pass_fds=(memory.maps, memory.mem),
        env=environment,
    )
    if answer.returncode:
        raise CrodoboError("the memory could not be searched: the process that was to do it has failed; see above")
    return Scan.from_data(json.loads(answer.stdout))


def main() -> None:
    """The other process: a request on standard input, the result on standard output."""
    request = json.load(sys.stdin)
    needles = Canary(request["seed"]).needles(len(request["mean"]), request["mean"], request["std"])
    json.dump(scan(ProcessMemory(request["maps"], request["mem"]), needles).as_data(), sys.stdout)


if __name__ == "__main__":
    main()
