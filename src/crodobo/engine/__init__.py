"""How K learners step: one after the other, or each in its own thread."""

import os

from crodobo.engine.base import Engine, Sequence
from crodobo.engine.parallel import Parallel

__all__ = ["Engine", "Parallel", "Sequence", "make_engine"]


def make_engine(learners: int, *, parallel: bool = True, threads: int | None = None) -> Engine:
    """The engine for this machine. By default each learner has a thread and an equal share of the cores."""
    cores = available_cores()
    threads = threads or max(1, cores // learners)
    if parallel and learners > 1:
        return Parallel(workers=min(learners, cores), threads=threads)
    return Sequence(threads)


def available_cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
