"""Search large contents for many patterns at once."""

import mmap
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

import numpy as np

BLOCK = 2**18  # bytes searched at a time: they and the table fit into a processor's cache
WORD = 8  # bytes of a pattern that are compared first
BITS = (20, 24)  # smallest and largest size of the hash table that rules out most positions
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # spreads words over the table


class Sought(Protocol):
    """Something with a content of at least eight bytes."""

    @property
    def content(self) -> bytes: ...


Pattern = TypeVar("Pattern", bound=Sought)


class Searcher(Generic[Pattern]):
    """Finds patterns in bytes.

    >>> from crodobo.burn.canary import Needle
    >>> searcher = Searcher([Needle(b"the quick brown fox", "text")])
    >>> [(needle.form, position) for needle, position in searcher.find(b"xyz the quick brown fox")]
    [('text', 4)]
    """

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        self._by_word: dict[int, list[tuple[Pattern, int]]] = {}
        self.longest = 0
        for pattern in patterns:
            place = _rarest_word(pattern.content)
            word = int.from_bytes(pattern.content[place : place + WORD], "little")
            self._by_word.setdefault(word, []).append((pattern, place))
            self.longest = max(self.longest, len(pattern.content))
        bits = min(max(BITS[0], (256 * len(self._by_word)).bit_length()), BITS[1])
        self._shift = np.uint64(64 - bits)
        self._table = np.zeros(2**bits, dtype=bool)
        self._table[(np.array(list(self._by_word), dtype=np.uint64) * FACTOR) >> self._shift] = True
        self._slots, self._hits = np.empty(BLOCK // WORD, np.uint64), np.empty(BLOCK // WORD, bool)

    def find(self, content: bytes | mmap.mmap) -> Iterator[tuple[Pattern, int]]:
        """The patterns in the content, each with its position."""
        with memoryview(content) as view:
            for block in range(0, len(view), BLOCK):
                for position in self._candidates(view, block):
                    word = int.from_bytes(view[position : position + WORD], "little")
                    for pattern, place in self._by_word.get(word, ()):
                        start = position - place
                        if start >= 0 and view[start : start + len(pattern.content)] == pattern.content:
                            yield pattern, start

    def _candidates(self, view: memoryview, block: int) -> list[int]:
        """Positions in a block where a word of a pattern may be."""
        positions: list[int] = []
        for start in range(block, min(block + WORD, len(view) - WORD + 1)):
            count = min(BLOCK, len(view) - start) // WORD
            slots, hits = self._slots[:count], self._hits[:count]
            np.multiply(np.frombuffer(view, "<u8", count, start), FACTOR, out=slots)
            np.right_shift(slots, self._shift, out=slots)
            self._table.take(slots.view(np.int64), out=hits, mode="clip")
            if hits.any():
                positions += (np.flatnonzero(hits) * WORD + start).tolist()
        return sorted(positions)


def _rarest_word(content: bytes) -> int:
    """Where the word with the most different bytes begins. Others, such as zeros, may be everywhere."""
    return max(range(len(content) - WORD + 1), key=lambda place: len(set(content[place : place + WORD])))
