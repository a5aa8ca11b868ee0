"""Proving that burning works: before the first query, and again every so many queries."""

from typing import Any

from crodobo.burn.hardening import harden
from crodobo.burn.proof import check_proving, places, prove_at_start, try_out
from crodobo.burn.scan import Scan
from crodobo.burn.search_process import SearchProcess
from crodobo.config import SessionSettings
from crodobo.core.memory import Memory
from crodobo.core.observer import Observer
from crodobo.errors import Residue
from crodobo.ledger.entry import now
from crodobo.methods import Method


class Prover:
    """Searches this process's memory for what a test query left behind, as often as the settings say."""

    def __init__(self, settings: SessionSettings, memory: Memory) -> None:
        check_proving(settings.prove_every, settings.options.burn)
        self._settings, self._memory = settings, memory
        self.scan: Scan | None = None  # the last result; always None without strict burning
        self.time: str | None = None  # of the last result
        self._searching: SearchProcess | None = None  # for searches between queries

    def as_numbers(self) -> dict[str, Any] | None:
        """The last result with its time, if there is one."""
        return self.scan.as_numbers() | {"time": self.time} if self.scan else None

    def prove_at_start(self, method: Method, observer: Observer) -> Scan | None:
        """Under strict burning, refuse to start if anything is left of a test query."""
        self.scan = prove_at_start(method, self._memory, self._settings.query_size, observer.note)
        self.time = now() if self.scan else None
        if self._settings.prove_every:
            self._searching = SearchProcess(harden().memory)  # now, while there is no private query to copy
        return self.scan

    def prove_after(self, query: int, method: Method) -> Scan | None:
        """Search again if it is due after the query of this number."""
        if not (self._searching and is_due(self._settings.prove_every, query)):
            return None
        self.scan = try_out(method, self._memory, self._settings.query_size, self._searching)
        self.time = now()
        return self.scan

    def close(self) -> None:
        """End the process that searches between queries."""
        if self._searching:
            self._searching.close()
            self._searching = None


def residue_of(scan: Scan | None) -> Residue | None:
    """The error for what a search has found, if it has found anything."""
    if scan and scan.finds:
        return Residue(f"A test query left something in memory after it was burned: {places(scan)}.")
    return None


def is_due(every: int | None, number: int) -> bool:
    """Whether something that is done every so many queries is due after this one."""
    return every is not None and number % every == 0
