"""Learners at the same time, each in a thread of its own."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from crodobo.engine.base import Engine, Result


class Parallel(Engine):
    """Runs the learners in threads of their own.

    torch lets go of Python's lock while it computes, so K learners use K cores. Two threads inside one operation
    are often slower than one where the machine is shared, since they wait for each other many times a step;
    learners wait for each other twice a query.

    Parameters
    ----------
    workers
        Learners that run at the same time; the others wait for a free thread.
    threads
        Threads inside each operation.

    Examples
    --------
    >>> Parallel(workers=2, threads=1).map(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    def __init__(self, workers: int, threads: int) -> None:
        super().__init__(threads)
        self._pool = ThreadPoolExecutor(
            max_workers=workers,
            thread_name_prefix="learner",
            initializer=torch.set_num_threads,
            initargs=(threads,),
        )

    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        everyone = list(zip(*arguments, strict=True))
        futures = [self._pool.submit(work, *given) for given in everyone]
        try:
            wait(futures)  # no learner is left running when another's error is raised
        except BaseException:  # Ctrl-C: the learners finish what they are at before anything is undone
            for future in futures:
                future.cancel()
            wait(futures)
            raise
        return [future.result() for future in futures]
