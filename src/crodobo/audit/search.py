"""Search large contents for many patterns at once."""

from collections.abc import Iterable, Iterator

import numpy as np

from crodobo.audit.contents import Content
from crodobo.audit.patterns import Pattern

CHUNK = 4 * 2**20  # bytes searched at a time
WORD = 8  # bytes at the start of a pattern that are compared first
BITS = 24  # size of the hash table that rules out most positions
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # spreads words over the table


class Searcher:
    """Finds patterns in bytes.

    >>> searcher = Searcher([Pattern(b"the quick brown fox", "a.png", "encoded bytes")])
    >>> [(pattern.image, position) for pattern, position in searcher.find(b"xyz the quick brown fox")]
    [('a.png', 4)]
    """

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._by_word: dict[int, list[Pattern]] = {}
        self.longest = 0
        for pattern in patterns:
            word = int.from_bytes(pattern.content[:WORD], "little")
            self._by_word.setdefault(word, []).append(pattern)
            self.longest = max(self.longest, len(pattern.content))
        self._table = np.zeros(2**BITS, dtype=bool)
        self._table[_slots(np.array(list(self._by_word), dtype=np.uint64))] = True

    def find(self, content: Content) -> Iterator[tuple[Pattern, int]]:
        """The patterns in the content, each with its position."""
        view = memoryview(content)
        for start in range(0, len(view), CHUNK):
            chunk = bytes(view[start : start + CHUNK + self.longest])
            for position in self._candidates(chunk):
                word = int.from_bytes(chunk[position : position + WORD], "little")
                for pattern in self._by_word.get(word, ()):
                    if position < CHUNK and chunk.startswith(pattern.content, position):
                        yield pattern, start + position

    def _candidates(self, chunk: bytes) -> list[int]:
        """Positions where a pattern may begin."""
        positions: list[int] = []
        for offset in range(min(WORD, len(chunk) - WORD + 1)):
            words = np.frombuffer(chunk, dtype="<u8", offset=offset, count=(len(chunk) - offset) // WORD)
            positions += (np.flatnonzero(self._table[_slots(words)]) * WORD + offset).tolist()
        return sorted(positions)


def _slots(words: np.ndarray) -> np.ndarray:
    return (words * FACTOR) >> np.uint64(64 - BITS)
