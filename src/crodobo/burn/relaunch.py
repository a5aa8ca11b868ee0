"""Restart a program in a process that keeps nothing back.

The allocator of a process, and whether Python and MKL keep freed memory, are settled when it starts. So the program
replaces itself: same process number, arguments, terminal and files, but other environment variables.
"""

import os
import sys

from crodobo.burn import allocator
from crodobo.burn.closing import close_process
from crodobo.errors import NotHardened

MARK = "CRODOBO_LAUNCHED"  # holds the number of the relaunched process
SETTINGS = {
    "PYTHONMALLOC": "malloc",  # Python's own arenas would keep small objects
    "MKL_DISABLE_FAST_MM": "1",  # MKL would keep its packing buffers
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # Arrow's own pool would keep Parquet tables
    "LD_BIND_NOW": "1",  # resolving a function at its first call saves the vector registers, and pixels, on the stack
}
UNSET = ("PILLOW_BLOCKS_MAX", "PILLOW_BLOCK_SIZE", "PILLOW_ALIGNMENT")  # with them Pillow keeps freed pixels, or may


def launched() -> bool:
    """Whether this process was relaunched for strict burning."""
    return os.environ.get(MARK) == str(os.getpid())


def environment() -> dict[str, str]:
    """The variables for strict burning. The user's own `LD_PRELOAD` stays, after ours."""
    best = allocator.best()
    if not best or not sys.platform.startswith("linux"):
        raise NotHardened(
            "Strict burning needs Linux and an allocator that overwrites freed memory.",
            "Install crodobo where there is a C compiler, or install libjemalloc, or choose standard burning.",
            settings=("burn",),
        )
    variables = dict(best[1])
    if "LD_PRELOAD" in variables and (others := os.environ.get("LD_PRELOAD")):
        variables["LD_PRELOAD"] += f":{others}"
    inherited = {name: value for name, value in os.environ.items() if name not in UNSET}
    return inherited | SETTINGS | variables | {MARK: str(os.getpid())}


def relaunch() -> None:
    """Restart this program for strict burning, and close the restarted process to others at once.

    Call this before anything else is loaded.
    """
    if launched():
        close_process()
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment())
