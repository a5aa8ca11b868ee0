"""Counts of a stream of files."""

from dataclasses import dataclass

from crodobo.core.counts import Counts


@dataclass
class FileCounts(Counts):
    """What happened to the files of an inbox since the start."""

    written: int = 0  # predictions; those of a query whose receipt failed are not among the samples
    quarantined: int = 0
    deleted_late: int = 0  # had their predictions before the last stop
    waiting: int = 0

    def totals(self) -> dict[str, int]:
        return {"files": self.written, "quarantined": self.quarantined}
