"""Making the next item while the last one is at work."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Made(Generic[Item]):
    """What the thread hands over: an item, the end, or an error."""

    def __init__(self, item: Item | None = None, error: BaseException | None = None, end: bool = False) -> None:
        self.item, self.error, self.end = item, error, end


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each made by a thread of this process while the one before is at work.

    One item at most lies ready. When the reader leaves early, or an error ends the loop, it is let go at once.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    ready: queue.Queue[_Made[Item]] = queue.Queue(maxsize=1)
    left = threading.Event()

    def hand_over(made: _Made[Item]) -> None:
        while not left.is_set():
            try:
                ready.put(made, timeout=0.05)
                return
            except queue.Full:
                continue

    def make() -> None:
        try:
            for item in items:
                hand_over(_Made(item))
                del item  # a query that is at work, or burned, is not held on to here
                if left.is_set():
                    return
            hand_over(_Made(end=True))
        except BaseException as error:
            hand_over(_Made(error=error))

    worker = threading.Thread(target=make, daemon=True)
    worker.start()
    try:
        while not (made := ready.get()).end:
            if made.error:
                raise made.error
            item, made.item = made.item, None
            yield item  # type: ignore[misc]
            del item
    finally:
        left.set()
        worker.join()
