"""Counts of a stream of files."""

from dataclasses import dataclass

from crodobo.core.counts import Counts


@dataclass
class FileCounts(Counts):
    """What happened to the files of an inbox since the start."""

    quarantined: int = 0
    deleted_late: int = 0  # had their predictions before the last stop
    waiting: int = 0

    def totals(self) -> dict[str, int]:
        return {"files": self.samples, "quarantined": self.quarantined}
