"""Queries made of what is in an inbox."""

import random
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.data.decode import decode
from crodobo.errors import BadImage
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Arrival, Changed, Inbox
from crodobo.inbox.settings import AdaptSettings
from crodobo.session.counts import Tally, Watching
from crodobo.session.stop import StopSignal

POLL = 0.25  # seconds between two looks into a folder that has nothing new
TELL = 10.0  # seconds without a file that can be taken, after which it is said what is waited for
PAUSE = 4  # or so many times as long as a look takes, where that is more


class Stream:
    """Queries made of what is in the inbox: full ones, or what has come when the oldest has waited long enough."""

    def __init__(
        self,
        settings: AdaptSettings,
        inbox: Inbox,
        shape: tuple[int, ...],
        memory: Memory,
        done: set[Arrival],
        stop: StopSignal,
        tally: Tally,
        reporter: Watching,
    ) -> None:
        self._settings, self._inbox, self._stop = settings, inbox, stop
        self._shape = (shape[0], shape[1], shape[2])
        self._memory = memory
        self._taken: set[Arrival] = done  # at work, or to be kept although they are predicted
        self._doubtful: set[Arrival] = set()  # could not be decoded, but have not been there for long
        self._tally, self._reporter = tally, reporter
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
                    self._tally.waiting -= 1
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
                    self._reporter.tally(self._tally)
                    idle = idle or time.monotonic()
                    if others and not told and time.monotonic() - idle > TELL:
                        self._reporter.note("waiting for files that are still being written, or were a moment ago")
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
        self._tally.waiting = len(ready)
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
                self._tally.quarantined += self._inbox.move_to_quarantine(arrival, str(error))
            return None
        self._taken.add(arrival)
        return self._memory.take(torch.from_numpy(pixels))
