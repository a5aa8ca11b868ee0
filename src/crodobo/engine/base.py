"""Engine: the interface of all engines, and the simplest one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class Engine(ABC):
    """Calls the same function for every learner.

    Learners share nothing that is written, so an engine may run them in any order or all at once. `map` returns when
    all of them have finished. Each torch operation uses `threads` threads; for the same number, all engines give the
    same bits.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        """`[work(*a) for a in zip(*arguments)]`. If calls fail, the error of the first in order is raised."""

    @contextmanager
    def torch_threads(self) -> Iterator[None]:
        """Use `threads` threads in torch operations of the calling thread, then restore the caller's number."""
        before = torch.get_num_threads()
        if before == self.threads:
            yield
            return
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


class Sequence(Engine):
    """Runs the learners one after the other in the calling thread.

    >>> Sequence(threads=1).map(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        with self.torch_threads():
            return [work(*each) for each in zip(*arguments, strict=True)]
