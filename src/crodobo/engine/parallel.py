"""Learners at the same time, each in its own thread."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch

from crodobo.engine.base import Engine, Result


class Parallel(Engine):
    """Runs the learners in threads.

    torch releases Python's global lock while it computes, so K learners use K cores. On a shared machine two threads
    inside one operation are often slower than one, because they wait for each other many times in a step. Learners
    wait for each other only twice in a query. If there are more learners than `workers`, the others wait for a free
    thread.

    >>> Parallel(workers=2, threads=1).map(lambda a, b: a + b, [1, 2], [10, 20])
    [11, 22]
    """

    def __init__(self, workers: int, threads: int) -> None:
        super().__init__(threads)
        self._pool = ThreadPoolExecutor(
            max_workers=workers, thread_name_prefix="learner", initializer=torch.set_num_threads, initargs=(threads,)
        )

    def map(self, work: Callable[..., Result], *arguments: Iterable[Any]) -> list[Result]:
        # torch keeps the number of threads per thread, and one more for threads to come. The pool's initializer sets
        # both; `torch_threads` puts the second one back.
        with self.torch_threads():
            futures = [self._pool.submit(work, *each) for each in list(zip(*arguments, strict=True))]
            try:
                wait(futures)  # no learner still runs when another's error is raised
            except BaseException:  # Ctrl-C: the learners finish their work before anything is undone
                for future in futures:
                    future.cancel()
                wait(futures)
                raise
        return [future.result() for future in futures]
