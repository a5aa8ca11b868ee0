"""Allocators that overwrite memory when it is freed. A process must be started with one for it to act."""

import ctypes
import ctypes.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LIBRARY = Path(__file__).with_name("zero_on_free.so")  # built at installation, where there is a C compiler


@dataclass(frozen=True)
class Allocator:
    """A way to have freed memory overwritten."""

    name: str
    uncovered: str  # what it does not overwrite, as a sentence; empty if nothing is known
    environment: Callable[[], dict[str, str] | None]  # variables to start a process with; None if not available here
    is_active: Callable[[], bool]  # whether this process was started with it


def _has(symbol: str) -> bool:
    return hasattr(ctypes.CDLL(None), symbol)


def _own() -> dict[str, str] | None:
    return {"LD_PRELOAD": str(LIBRARY)} if LIBRARY.is_file() else None


def _jemalloc() -> dict[str, str] | None:
    library = ctypes.util.find_library("jemalloc")
    return {"LD_PRELOAD": library, "MALLOC_CONF": "junk:free"} if library else None


def _glibc() -> dict[str, str] | None:
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (OSError, ValueError):
        return None
    tunables = "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0"
    return {"GLIBC_TUNABLES": tunables, "MALLOC_PERTURB_": "165"} if version else None


ALLOCATORS = (
    Allocator("zero-on-free", "", _own, lambda: _has("crodobo_zero_on_free")),
    Allocator(
        "glibc perturb",
        "A debugging aid of glibc overwrites freed memory; versions other than 2.36 may do that less thoroughly.",
        _glibc,
        lambda: "perturb=165" in os.environ.get("GLIBC_TUNABLES", ""),
    ),
    Allocator(
        "jemalloc junk:free",
        "jemalloc overwrites freed memory, but misses some of it when a block grows or shrinks.",
        _jemalloc,
        lambda: _has("mallctl") and "junk:free" in os.environ.get("MALLOC_CONF", ""),
    ),
)


def best() -> tuple[Allocator, dict[str, str]] | None:
    """The first allocator that is available here, with its variables."""
    for allocator in ALLOCATORS:
        if (environment := allocator.environment()) is not None:
            return allocator, environment
    return None


def active() -> Allocator | None:
    """The allocator that this process was started with."""
    return next((allocator for allocator in ALLOCATORS if allocator.is_active()), None)
