"""Close this process to others, and check that every part of strict burning is active."""

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crodobo.burn import allocator
from crodobo.burn.closing import close_process, refusal
from crodobo.burn.process import ProcessMemory
from crodobo.burn.relaunch import SETTINGS, UNSET
from crodobo.data.formats import REFUSED

SWAP = "Swap is on: activations can be written to it, queries cannot. Turn it off, or encrypt it."


@dataclass(frozen=True)
class Hardening:
    """The active allocator, known gaps as sentences, and the process's own memory for searches."""

    allocator: str
    uncovered: tuple[str, ...]
    memory: ProcessMemory


@cache
def harden() -> Hardening:
    """Turn core dumps off, close the process to debuggers and other users, and check everything else.

    From then on, image formats whose decoders leave pixels in memory are refused.

    Raises `NotHardened` with everything that is missing. Calling it again is harmless.
    """
    active = allocator.active()
    missing = [] if active else ["freed memory is not overwritten, because no allocator that does so is loaded"]
    for name, value in SETTINGS.items():
        if os.environ.get(name) != value or (name.startswith("PYTHON") and sys.flags.ignore_environment):
            missing.append(f"{name}={value} was not set when the process started")
    missing += [f"{name} is set, and Pillow may keep pixels" for name in UNSET if name in os.environ]
    if missing or not active:
        raise refusal(
            "; ".join(missing),
            "The crodobo command restarts itself with all of this. In your own program, call "
            "crodobo.burn.relaunch.relaunch() first, or choose standard burning.",
        )
    memory = close_process()
    REFUSED.add("HEIF")  # the proof finds pixels that its decoder has left
    gaps = (active.uncovered, SWAP if _swap_is_on() else "")
    return Hardening(active.name, tuple(gap for gap in gaps if gap), memory)


def _swap_is_on() -> bool:
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1  # the first line is a heading
    except OSError:
        return False
