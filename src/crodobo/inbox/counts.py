"""The counts of a stream of files."""

from dataclasses import dataclass

from crodobo.core.counts import Counts


@dataclass
class FileCounts(Counts):
    """Counts of samples, and of files that are not predicted yet or never will be."""

    quarantined: int = 0
    deleted_late: int = 0
    waiting: int = 0
