"""Close this process to debuggers, core dumps and other processes of its user. Root can still read it."""

import ctypes
import os
import re
import resource
from functools import cache
from pathlib import Path

from crodobo.burn.process import ProcessMemory
from crodobo.errors import NotHardened

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4  # of Linux


@cache
def close_process() -> ProcessMemory:
    """Close the process, and return its own memory, which is opened before that. Calling it again is harmless.

    Close it as early as possible: a process that opens our memory before can read it ever after.
    """
    memory = ProcessMemory.of("self")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) or libc.prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        raise refusal(f"core dumps and debuggers cannot be kept out ({reason})", "Choose standard burning.")
    if _is_traced():
        raise refusal("a debugger is attached to the process and reads its memory", "Start it without one.")
    return memory


def refusal(problem: str, remedy: str) -> NotHardened:
    """The error for a process that cannot be hardened."""
    return NotHardened(f"Strict burning cannot start: {problem}.", remedy, settings=("burn",))


def _is_traced() -> bool:
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return not re.search(r"^TracerPid:\s*0$", status, re.MULTILINE)
