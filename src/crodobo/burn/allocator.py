"""Allocators that overwrite memory when it is given back. They act only if a process is started with them."""

import ctypes
import ctypes.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(__file__).with_name("zero_on_free.so")  # built when the package is installed, where there is a compiler


@dataclass(frozen=True)
class Allocator:
    """A way to have freed memory overwritten.

    Parameters
    ----------
    name
        For people.
    uncovered
        What it leaves, as a sentence; empty if nothing is known that it does.
    environment
        The variables that a process is started with, or None where this way is not open.
    at_work
        Whether it is, in this process.
    """

    name: str
    uncovered: str
    environment: Callable[[], dict[str, str] | None]
    at_work: Callable[[], bool]


def _has(symbol: str) -> bool:
    return hasattr(ctypes.CDLL(None), symbol)


def _own() -> dict[str, str] | None:
    return {"LD_PRELOAD": str(LIBRARY)} if LIBRARY.is_file() else None


def _jemalloc() -> dict[str, str] | None:
    found = ctypes.util.find_library("jemalloc")
    return {"LD_PRELOAD": found, "MALLOC_CONF": "junk:free"} if found else None


def _glibc() -> dict[str, str] | None:
    try:
        known = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None
    tunables = "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"
    return {"GLIBC_TUNABLES": tunables, "MALLOC_PERTURB_": "165"} if known else None


ALLOCATORS = (
    Allocator("zero-on-free", "", _own, lambda: _has("crodobo_zero_on_free")),
    Allocator(
        "glibc perturb",
        "glibc overwrites freed memory as a debugging aid, which other versions than 2.36 may do less thoroughly",
        _glibc,
        lambda: "perturb=165" in os.environ.get("GLIBC_TUNABLES", ""),
    ),
    Allocator(
        "jemalloc junk:free",
        "jemalloc overwrites freed memory, but not all that is left behind where a block grows or shrinks",
        _jemalloc,
        lambda: _has("mallctl") and "junk:free" in os.environ.get("MALLOC_CONF", ""),
    ),
)


def best() -> tuple[Allocator, dict[str, str]] | None:
    """The first one that can be had here, with its variables."""
    for allocator in ALLOCATORS:
        if (environment := allocator.environment()) is not None:
            return allocator, environment
    return None


def at_work() -> Allocator | None:
    """The one that this process was started with."""
    return next((allocator for allocator in ALLOCATORS if allocator.at_work()), None)
