"""Starting a command again in a process that leaves nothing behind.

Which allocator a process has, and whether Python and MKL keep memory back, is settled when it starts. So the command is
started once more in the same process number, with the same arguments, terminal and files, and other variables.
"""

import os
import sys

from crodobo.burn import allocator
from crodobo.errors import NotHardened

MARK = "CRODOBO_LAUNCHED"  # the number of the process that was started this way
SETTINGS = {
    "PYTHONMALLOC": "malloc",  # Python's own arenas would keep small objects
    "MKL_DISABLE_FAST_MM": "1",  # MKL would keep its packing buffers
    "LD_BIND_NOW": "1",  # binding a function at its first call would copy vector registers, with pixels, to the stack
    "ARROW_DEFAULT_MEMORY_POOL": "system",  # Parquet tables would be read into a pool that keeps its memory
}


def launched() -> bool:
    """Whether this process was started for strict burning."""
    return os.environ.get(MARK) == str(os.getpid())


def environment() -> dict[str, str]:
    """The variables for such a process; an `LD_PRELOAD` of the user's stays, after ours."""
    found = allocator.best()
    if not found or not sys.platform.startswith("linux"):
        raise NotHardened(
            "strict burning needs Linux and an allocator that overwrites freed memory: install crodobo where there is "
            "a C compiler, or libjemalloc; or choose --burn standard, which overwrites what it owns"
        )
    variables = dict(os.environ) | SETTINGS | found[1] | {MARK: str(os.getpid())}
    if "LD_PRELOAD" in found[1] and (others := os.environ.get("LD_PRELOAD")):
        variables["LD_PRELOAD"] = f"{found[1]['LD_PRELOAD']}:{others}"
    return variables


def relaunch() -> None:
    """Start this program again for strict burning, unless that has been done. Call it before anything is loaded."""
    if launched():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment())
