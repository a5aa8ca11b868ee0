"""Facts about this process."""

import resource
import sys


def peak_memory() -> float:
    """The most memory that this process has held, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
