"""Queries made of what is in an inbox."""

import random
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from crodobo.core.memory import Memory
from crodobo.core.observer import Observer
from crodobo.core.query import Query
from crodobo.data.decode import decode
from crodobo.errors import BadImage
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Arrival, Changed, Inbox
from crodobo.inbox.counts import FileCounts
from crodobo.inbox.settings import AdaptSettings
from crodobo.session.stop import Stop

POLL = 0.25  # seconds between two scans of a folder without new files
PATIENT = 10.0  # seconds without a file, after which a note says what the stream is waiting for
PAUSE = 4  # or this many times as long as a scan takes, if that is more


class Stream:
    """Queries made of what is in the inbox: full ones, or what has come when the oldest has waited long enough."""

    def __init__(
        self,
        settings: AdaptSettings,
        inbox: Inbox,
        shape: tuple[int, ...],
        memory: Memory,
        *,
        done: set[Arrival],
        stop: Stop,
        counts: FileCounts,
        observer: Observer,
    ) -> None:
        self._settings, self._inbox, self._stop = settings, inbox, stop
        self._shape = (shape[0], shape[1], shape[2])
        self._memory = memory
        self._taken: set[Arrival] = done  # being processed, or predicted and kept
        self._doubtful: set[Arrival] = set()  # not decodable, but new: the writer may not be done
        self._counts, self._observer = counts, observer
        self._closed = False

    def __iter__(self) -> Iterator[tuple[Query, list[Arrival]]]:
        images: list[Tensor] = []
        arrivals: list[Arrival] = []
        idle, told = 0.0, False  # since when nothing could be taken, and whether that was said
        since = 0.0  # when the oldest image of the query was ready

        def query() -> tuple[Query, list[Arrival]]:
            batch = torch.stack(images)
            self._memory.burn(images)
            made = Query(batch, self._memory), list(arrivals)
            images.clear()
            arrivals.clear()
            return made

        try:
            while not self._ending():
                looked = time.monotonic()
                ready, others = self._look()
                pause = max(POLL, PAUSE * (time.monotonic() - looked))
                taken = 0
                for arrival in ready:
                    if self._ending():
                        return
                    image = self._take(arrival)
                    self._counts.waiting -= 1
                    if image is None:
                        continue
                    taken += 1
                    idle, told = 0.0, False
                    since = since if images else time.monotonic()
                    images.append(image)
                    arrivals.append(arrival)
                    if len(images) == self._settings.query_size:
                        yield query()
                at_the_end = not (self._settings.watch or ready or others)
                if images and (at_the_end or time.monotonic() - since >= self._settings.max_wait):
                    yield query()
                if at_the_end:
                    return
                if not taken:
                    self._observer.query(self._counts)
                    idle = idle or time.monotonic()
                    if others and not told and time.monotonic() - idle > PATIENT:
                        self._observer.note("Waiting for files that are still being written, or were a moment ago.")
                        told = True
                    self._sleep(min(pause, since + self._settings.max_wait - time.monotonic()) if images else pause)
        finally:
            self._memory.burn(images)

    def close(self) -> None:
        """Make no more queries."""
        self._closed = True

    def finished(self, arrivals: list[Arrival]) -> None:
        """These files have their predictions on disk."""
        for arrival in arrivals:
            if not self._inbox.keep_files:
                self._inbox.delete(arrival)
                self._taken.discard(arrival)

    def _ending(self) -> bool:
        return self._closed or self._stop.requested

    def _sleep(self, seconds: float) -> None:
        """Wait, but not for longer than it takes to notice the end."""
        end = time.monotonic() + seconds
        while not self._ending() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL))

    def _look(self) -> tuple[list[Arrival], bool]:
        """Files to take, and whether there are others whose time has not come: they may still be written to."""
        there = self._inbox.scan()
        if self._inbox.keep_files:
            self._taken &= set(there)  # of files that are gone nothing is remembered
        self._doubtful &= set(there)
        untaken = [arrival for arrival in there if arrival not in self._taken]
        ready = [arrival for arrival in untaken if self._inbox.unchanged_for(arrival) >= self._patience(arrival)]
        if self._settings.shuffle:
            random.Random(self._settings.options.seed).shuffle(ready)
        self._counts.waiting = len(ready)
        return ready, len(ready) < len(untaken)

    def _patience(self, arrival: Arrival) -> float:
        """For how long a file has to be unchanged; one that could not be decoded is tried again once, much later."""
        return PATIENCE if arrival in self._doubtful else SETTLE

    def _take(self, arrival: Arrival) -> Tensor | None:
        """The decoded image; None for a file that was put away, or is left for later."""
        try:
            content = self._inbox.read(arrival)
            pixels = decode(content, self._shape, self._settings.data.fit)
        except Changed:
            return None
        except BadImage as error:
            if self._inbox.unchanged_for(arrival) < PATIENCE:
                self._doubtful.add(arrival)
            else:
                self._counts.quarantined += self._inbox.move_to_quarantine(arrival, str(error))
            return None
        self._taken.add(arrival)
        return self._memory.take(torch.from_numpy(pixels))
