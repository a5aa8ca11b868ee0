"""Learners one after the other."""

from collections.abc import Callable, Iterable
from typing import Any

from crodobo.engine.base import Engine, Result


class Sequence(Engine):
    """Runs the learners one after the other in the calling thread.

    >>> Sequence(threads=1).map(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        with self.torch_threads():
            return [work(*each) for each in zip(*arguments, strict=True)]
