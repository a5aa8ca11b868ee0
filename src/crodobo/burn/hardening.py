"""Close this process to others, and check that every part of strict burning is active."""

import ctypes
import os
import resource
import sys
from dataclasses import dataclass
from functools import cache

from crodobo.burn import allocator
from crodobo.burn.process import ProcessMemory
from crodobo.burn.relaunch import SETTINGS
from crodobo.errors import NotHardened

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # of Linux


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
    missing = []
    active = allocator.active()
    if not active:
        missing.append("freed memory is not overwritten, because no allocator that does so is loaded")
    for name, value in SETTINGS.items():
        if os.environ.get(name) != value or (name.startswith("PYTHON") and sys.flags.ignore_environment):
            missing.append(f"{name}={value} was not set when the process started")
    if missing:
        raise NotHardened(
            f"Strict burning cannot start: {'; '.join(missing)}.",
            "The crodobo command restarts itself with all of this. In your own program, call "
            "crodobo.burn.relaunch.relaunch() first, or choose standard burning.",
            settings=("burn",),
        )
    memory = ProcessMemory.of("self")  # before the process is closed, to itself too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise NotHardened(
            "Strict burning cannot start: core dumps and debuggers cannot be kept out "
            f"({os.strerror(ctypes.get_errno())}).",
            "Choose standard burning.",
            settings=("burn",),
        )
    assert active
    return Hardening(active.name, _gaps(active), memory)


def _gaps(active: allocator.Allocator) -> tuple[str, ...]:
    """What strict burning does not cover on this machine."""
    gaps = [active.uncovered] if active.uncovered else []
    try:
        with open("/proc/swaps") as file:
            swaps = len(file.read().splitlines()) - 1
    except OSError:
        swaps = 0
    if swaps > 0:
        gaps.append("Swap is on: activations can be written to it, queries cannot. Turn it off, or encrypt it.")
    return tuple(gaps)
