"""Looking for many pieces at once, at every place of a large content."""

from collections.abc import Iterable, Iterator

import numpy as np

from crodobo.audit.contents import Content
from crodobo.audit.patterns import Trace

CHUNK = 4 * 2**20  # bytes that are looked at at a time
WORD = 8  # bytes of a piece that are looked for first
BITS = 24  # of the table that most places are ruled out by
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # spreads words over the table


class Searcher:
    """Finds traces in bytes.

    >>> searcher = Searcher([Trace(b"the quick brown fox", "a.png", "encoded bytes")])
    >>> [(trace.image, place) for trace, place in searcher.find(b"xyz the quick brown fox")]
    [('a.png', 4)]
    """

    def __init__(self, traces: Iterable[Trace]) -> None:
        self._by_word: dict[int, list[Trace]] = {}
        self.longest = 0
        for trace in traces:
            word = int.from_bytes(trace.content[:WORD], "little")
            self._by_word.setdefault(word, []).append(trace)
            self.longest = max(self.longest, len(trace.content))
        self._table = np.zeros(2**BITS, dtype=bool)
        self._table[_slots(np.array(list(self._by_word), dtype=np.uint64))] = True

    def find(self, content: Content) -> Iterator[tuple[Trace, int]]:
        """Traces that are in the content, each with its place."""
        view = memoryview(content)
        for start in range(0, len(view), CHUNK):
            chunk = bytes(view[start : start + CHUNK + self.longest])
            for place in self._candidates(chunk):
                word = int.from_bytes(chunk[place : place + WORD], "little")
                for trace in self._by_word.get(word, ()):
                    if place < CHUNK and chunk.startswith(trace.content, place):
                        yield trace, start + place

    def _candidates(self, chunk: bytes) -> list[int]:
        """Places where a piece may begin."""
        places: list[int] = []
        for offset in range(min(WORD, len(chunk) - WORD + 1)):
            words = np.frombuffer(chunk, dtype="<u8", offset=offset, count=(len(chunk) - offset) // WORD)
            places += (np.flatnonzero(self._table[_slots(words)]) * WORD + offset).tolist()
        return sorted(places)


def _slots(words: np.ndarray) -> np.ndarray:
    return (words * FACTOR) >> np.uint64(64 - BITS)
