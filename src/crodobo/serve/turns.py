"""Turns: items of several owners that wait for something."""

import itertools
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
MAX_SERVED = 1000  # owners whose last turn is remembered


class Turns(Generic[Item]):
    """Owners take turns: the one that was served longest ago is next. The items of an owner keep their order.

    >>> turns = Turns()
    >>> for owner, item in [("shop", 1), ("shop", 2), ("ward", 3)]:
    ...     turns.add(owner, item)
    >>> turns.take("shop", 1)
    >>> [list(line) for line in turns.lines()]
    [[3], [2]]
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[Item]] = {}  # by owner
        self._served: dict[str, int] = {}  # when each owner had its last turn; the latest is the last
        self._clock = itertools.count(1)

    def __bool__(self) -> bool:
        """Whether anything waits. Any thread may ask."""
        return bool(self._lines)

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[Item]:
        return itertools.chain.from_iterable(self._lines.values())

    def lines(self) -> list[deque[Item]]:
        """The items of each owner, first those of the owner whose turn it is."""
        owners = sorted(self._lines, key=lambda owner: self._served.get(owner, 0))
        return [self._lines[owner] for owner in owners]

    def add(self, owner: str, item: Item) -> None:
        self._lines.setdefault(owner, deque()).append(item)

    def take(self, owner: str, item: Item) -> None:
        """Take an item out because it is its turn."""
        self.remove(owner, item)
        self._served.pop(owner, None)
        self._served[owner] = next(self._clock)
        if len(self._served) > MAX_SERVED:
            del self._served[next(iter(self._served))]

    def remove(self, owner: str, item: Item) -> None:
        """Take an item out that waits no longer. Nothing happens if it is not there."""
        line = self._lines.get(owner, deque())
        if item in line:
            line.remove(item)
        if not line:
            self._lines.pop(owner, None)
