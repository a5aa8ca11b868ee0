"""Fair shares: several owners use one limited amount, and none of them can use it up."""

import contextlib
from collections import Counter
from collections.abc import Iterator


class FairShare:
    """An amount of places or bytes. An owner may hold at most as much of it as is still free.

    So one owner can have half of it, two can have a third each, and there is always something left for others.

    >>> places = FairShare(6)
    >>> with places.hold("shop", 3):
    ...     places.fits("shop"), places.fits("shop", fair=False), places.fits("ward")
    (False, True, True)
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self._held: Counter[str] = Counter()

    def held(self, owner: str) -> int:
        """What an owner holds now."""
        return self._held[owner]

    def fits(self, owner: str, amount: int = 1, *, fair: bool = True) -> bool:
        """Whether an owner may hold so much more. Without `fair` it may have all that is free."""
        free = self.total - self.used
        return amount <= free and (not fair or self._held[owner] + amount <= free)

    def take(self, owner: str, amount: int = 1) -> None:
        self.used += amount
        self._held[owner] += amount

    def give_back(self, owner: str, amount: int = 1) -> None:
        self.used -= amount
        self._held[owner] -= amount
        if not self._held[owner]:
            del self._held[owner]

    @contextlib.contextmanager
    def hold(self, owner: str, amount: int = 1) -> Iterator[None]:
        """Take an amount, and give it back at the end of the block."""
        self.take(owner, amount)
        try:
            yield
        finally:
            self.give_back(owner, amount)
