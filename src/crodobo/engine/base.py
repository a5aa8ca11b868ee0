"""What an engine owes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Engine(ABC):
    """Runs the same piece of work for every learner.

    Learners share nothing that is written, so an engine may run them in any order or all at once; each call to
    `map` is a meeting: it returns when all have finished.

    Parameters
    ----------
    threads
        Threads inside each operation. Sequence and parallel give the same bits for the same number.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @abstractmethod
    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        """`[work(*a) for a in zip(*arguments)]`, and like it, raises what the first failing work raised."""
