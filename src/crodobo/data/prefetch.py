"""Preparing the next item in a thread while the current one is being used."""

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def prefetch(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the same items, each made by a thread while the one before is being used.

    At most one item is ready. It is released at once if the reader stops early or an error ends the loop.
    """
    ready: queue.SimpleQueue[list[Item] | BaseException] = queue.SimpleQueue()  # an item is in a list of its own
    wanted = threading.Semaphore()  # items to make: one at the start, then one for each that is taken
    stopped = threading.Event()

    def make() -> None:
        try:
            remaining = iter(items)
            while wanted.acquire() and not stopped.is_set():
                ready.put([next(remaining)])
        except BaseException as error:  # StopIteration at the end
            ready.put(error)

    worker = threading.Thread(target=make, daemon=True)
    worker.start()
    try:
        while not isinstance(made := ready.get(), StopIteration):
            if isinstance(made, BaseException):
                raise made
            item = made.pop()  # no second reference that would keep it in memory
            wanted.release()
            yield item
            del item
    finally:
        stopped.set()
        wanted.release()
        worker.join()
        while not ready.empty():
            ready.get()
