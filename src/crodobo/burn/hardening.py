"""Close this process to others, and check that every part of strict burning is active."""

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from crodobo.burn import allocator
from crodobo.burn.process import ProcessMemory
from crodobo.burn.relaunch import SETTINGS
from crodobo.errors import NotHardened

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # of Linux
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

    Raises `NotHardened` with everything that is missing. Calling it again is harmless.
    """
    active = allocator.active()
    missing = [] if active else ["freed memory is not overwritten, because no allocator that does so is loaded"]
    for name, value in SETTINGS.items():
        if os.environ.get(name) != value or (name.startswith("PYTHON") and sys.flags.ignore_environment):
            missing.append(f"{name}={value} was not set when the process started")
    if missing or not active:
        raise _refusal(
            "; ".join(missing),
            "The crodobo command restarts itself with all of this. In your own program, call "
            "crodobo.burn.relaunch.relaunch() first, or choose standard burning.",
        )
    memory = ProcessMemory.of("self")  # before the process is closed, to itself too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise _refusal(f"core dumps and debuggers cannot be kept out ({reason})", "Choose standard burning.")
    gaps = (active.uncovered, SWAP if _swap_is_on() else "")
    return Hardening(active.name, tuple(gap for gap in gaps if gap), memory)


def _refusal(problem: str, remedy: str) -> NotHardened:
    return NotHardened(f"Strict burning cannot start: {problem}.", remedy, settings=("burn",))


def _swap_is_on() -> bool:
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1  # the first line is a heading
    except OSError:
        return False
