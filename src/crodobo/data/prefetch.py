"""Making the next item while the last one is at work."""

import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
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
    ready: queue.SimpleQueue[_Made[Item]] = queue.SimpleQueue()
    wanted = threading.Semaphore()  # how many items may be made: one to begin with, one more for each that is taken
    left = threading.Event()

    def make() -> None:
        try:
            remaining = iter(items)
            while wanted.acquire() and not left.is_set():
                ready.put(_Made(next(remaining)))
        except StopIteration:
            ready.put(_Made(end=True))
        except BaseException as error:
            ready.put(_Made(error=error))

    worker = threading.Thread(target=make, daemon=True)
    worker.start()
    try:
        while not (made := ready.get()).end:
            if made.error:
                raise made.error
            item, made.item = made.item, None
            wanted.release()
            yield item  # type: ignore[misc]
            del item
    finally:
        left.set()
        wanted.release()
        worker.join()
        while not ready.empty():
            ready.get()


@contextmanager
def let_go(items: Iterable[Item]) -> Iterator[Iterable[Item]]:
    """When the block ends, by an error too, a generator of items lets go at once of what it has ready."""
    try:
        yield items
    finally:
        if isinstance(items, Generator):
            items.close()
