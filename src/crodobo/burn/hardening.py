"""Closing a process to others, and seeing that nothing of strict burning is missing."""

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
    """What is in force: the allocator, what it does not cover, and the process's own memory to have it searched."""

    allocator: str
    uncovered: tuple[str, ...]
    memory: ProcessMemory


@cache
def harden() -> Hardening:
    """Turn core dumps off, close the process to debuggers and other users, see that all else is as it must be.

    Raises `NotHardened` with everything that is missing. Doing it again is harmless.
    """
    missing = []
    at_work = allocator.at_work()
    if not at_work:
        missing.append("freed memory is not overwritten, because no allocator that does was loaded")
    for name, value in SETTINGS.items():
        if os.environ.get(name) != value or (name.startswith("PYTHON") and sys.flags.ignore_environment):
            missing.append(f"{name}={value} was not in force when the process started")
    if missing:
        raise NotHardened(
            f"strict burning cannot start: {'; '.join(missing)}. The crodobo command starts itself with all of this; a "
            "program of your own calls crodobo.burn.relaunch() first. Or choose standard, which overwrites what it owns"
        )
    memory = ProcessMemory.of("self")  # first, since a closed process is closed to itself too
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise NotHardened(
            f"strict burning cannot start: core dumps and debuggers cannot be shut out "
            f"({os.strerror(ctypes.get_errno())}); choose --burn standard, which overwrites what it owns"
        )
    assert at_work
    return Hardening(at_work.name, notes(at_work), memory)


def notes(at_work: allocator.Allocator) -> tuple[str, ...]:
    """What this machine leaves open."""
    found = [at_work.uncovered] if at_work.uncovered else []
    try:
        with open("/proc/swaps") as file:
            swaps = len(file.read().splitlines()) - 1
    except OSError:
        swaps = 0
    if swaps > 0:
        found.append(
            "swap is on: queries are locked in memory, but what the network makes of them can be written to it; turn "
            "it off, or encrypt it"
        )
    return tuple(found)
