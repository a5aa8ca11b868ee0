"""Queries made of what is in an inbox."""

import math
import random
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from crodobo.core.query import Query
from crodobo.data.decode import decode
from crodobo.errors import BadImage
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Changed, Inbox
from crodobo.inbox.counts import FileCounts
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.walk import Arrival
from crodobo.session.session import Session

POLL = 0.25  # seconds between two scans of a folder without new files
PAUSE = 4  # or this many times as long as a scan takes, if that is more
NOTE_AFTER = 10.0  # seconds without a file, after which a note says what the stream is waiting for


class Stream:
    """Makes queries from the inbox: full ones, or smaller ones once the oldest image has waited long enough.

    `done` are files that are predicted and stay where they are.
    """

    def __init__(
        self, settings: AdaptSettings, inbox: Inbox, session: Session, counts: FileCounts, done: set[Arrival]
    ) -> None:
        channels, height, width = session.method.source.shape
        self._shape = (channels, height, width)
        self._settings, self._inbox, self.counts = settings, inbox, counts
        self._memory, self._stop, self._observer = session.memory, session.stop, session.observer
        self._taken = done  # being processed, or predicted and kept
        self._doubtful: set[Arrival] = set()  # not decodable, but new: the writer may not be done
        self._images: list[Tensor] = []  # of the next query
        self._arrivals: list[Arrival] = []  # their files
        self._deadline = 0.0  # when the next query is made even if it is not full
        self._closed = False

    def __iter__(self) -> Iterator[tuple[Query, list[Arrival]]]:
        note_at = time.monotonic() + NOTE_AFTER
        try:
            while not self._is_ending():
                started = time.monotonic()
                ready, others = self._scan()
                pause = max(POLL, PAUSE * (time.monotonic() - started))
                took_any, at_the_end = False, not (self._settings.watch or ready or others)
                ready.reverse()
                while ready:  # a loop variable would keep the last file's name in memory until the next one comes
                    if self._is_ending():
                        return
                    took_any |= self._take(ready.pop())
                    self.counts.waiting -= 1
                    if len(self._images) == self._settings.query_size:
                        yield self._make_query()
                if self._images and (at_the_end or time.monotonic() >= self._deadline):
                    yield self._make_query()
                if at_the_end:
                    return
                if took_any:
                    note_at = time.monotonic() + NOTE_AFTER
                    continue
                self._observer.query(self.counts)
                if others and time.monotonic() > note_at:
                    self._observer.note("Waiting for files that are still being written, or were a moment ago.")
                    note_at = math.inf
                self._sleep(min(pause, self._deadline - time.monotonic()) if self._images else pause)
        finally:
            self._memory.burn(self._images)

    def close(self) -> None:
        """Make no more queries."""
        self._closed = True

    def finished(self, arrivals: list[Arrival]) -> None:
        """Delete files that have their predictions on disk, unless files are kept."""
        if not self._inbox.keep_files:
            for arrival in arrivals:
                self._inbox.delete(arrival)
                self._taken.discard(arrival)

    def _is_ending(self) -> bool:
        return self._closed or self._stop.requested

    def _sleep(self, seconds: float) -> None:
        """Wait in small pieces, so that a request to stop is noticed."""
        end = time.monotonic() + seconds
        while not self._is_ending() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL))

    def _scan(self) -> tuple[list[Arrival], bool]:
        """Files to take now, and whether there are others that may still be written to."""
        there = self._inbox.scan()
        if self._inbox.keep_files:
            self._taken &= set(there)  # forget files that are gone
        self._doubtful &= set(there)
        untaken = [arrival for arrival in there if arrival not in self._taken]
        ready = [arrival for arrival in untaken if self._has_settled(arrival)]
        if self._settings.shuffle:
            random.Random(self._settings.options.seed).shuffle(ready)
        self.counts.waiting = len(ready)
        return ready, len(ready) < len(untaken)

    def _has_settled(self, arrival: Arrival) -> bool:
        """Whether a file is unchanged for long enough. One that could not be decoded is tried again once, later."""
        return self._inbox.unchanged_for(arrival) >= (PATIENCE if arrival in self._doubtful else SETTLE)

    def _take(self, arrival: Arrival) -> bool:
        """Add an image to the next query. Returns False for a file that goes to quarantine or is left for later."""
        try:
            pixels = decode(self._inbox.read(arrival), self._shape, self._settings.data.fit)
        except Changed:
            return False
        except BadImage as error:
            if self._inbox.unchanged_for(arrival) < PATIENCE:
                self._doubtful.add(arrival)
            else:
                self.counts.quarantined += self._inbox.move_to_quarantine(arrival, str(error))
            return False
        if not self._images:
            self._deadline = time.monotonic() + self._settings.max_wait
        self._images.append(self._memory.take(torch.from_numpy(pixels)))
        self._arrivals.append(arrival)
        self._taken.add(arrival)
        return True

    def _make_query(self) -> tuple[Query, list[Arrival]]:
        batch, arrivals = torch.stack(self._images), self._arrivals
        self._memory.burn(self._images)
        self._images, self._arrivals = [], []
        return Query(batch, self._memory), arrivals
