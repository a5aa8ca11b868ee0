"""Speed and memory of a method, as ratios that hold on a noisy machine.

Everything is measured in one process, interleaved: each round times every variant once, so that whatever else the
machine does falls on all of them, and a ratio is the median of the rounds' ratios. Memory is measured in a process
of its own, where nothing that came before can hide a leak.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.engine import Parallel, Sequence, available_cores
from crodobo.methods import CroDoBo
from crodobo.nn.learner import Learner


@dataclass(frozen=True)
class Case:
    """What is measured: CroDoBo with a backbone on random images of a shape."""

    name: str
    backbone: str
    shape: tuple[int, int, int]
    rounds: int
    memory_query: int  # samples in a query of the memory run
    classes: int = 10
    query: int = 64
    learners: int = 2


CASES = {
    "glyphs": Case("glyphs", "small", (1, 32, 32), rounds=20, memory_query=64),
    "resnet18-64px": Case("resnet18-64px", "resnet18", (3, 64, 64), rounds=7, memory_query=8),
}


@dataclass(frozen=True)
class Times:
    """Seconds per query (medians) and the ratios between them."""

    seconds_per_query: float
    floor_seconds: float
    overhead: float
    speedup_over_one_thread: float
    speedup_over_all_cores: float
    rounds: int


@dataclass(frozen=True)
class Memory:
    """Resident memory in megabytes early and late in a stream."""

    early_queries: int
    early_mb: float
    late_queries: int
    late_mb: float
    growth: float
    query_size: int


def measure(case: Case, *, rounds: int | None, queries: int, note: Callable[[str], None]) -> dict[str, Any]:
    """All numbers of a case."""
    note(f"{case.name}: timing, {rounds or case.rounds} rounds")
    times = measure_times(case, rounds or case.rounds)
    note(f"{case.name}: memory, {queries} queries of {case.memory_query}")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        memory = pool.submit(measure_memory, case, queries).result()
    return {"case": asdict(case), "cores": available_cores(), "times": asdict(times), "memory": asdict(memory)}


def measure_times(case: Case, rounds: int) -> Times:
    """Time per query against the compute floor, and parallel learners against the same in sequence."""
    method = make_method(case)
    images = torch.rand(case.query, *case.shape)
    parallel = Parallel(workers=case.learners, threads=1)
    one_thread, all_cores = Sequence(threads=1), Sequence(threads=available_cores())
    ready = Ready.of(case)

    def step(engine: Parallel | Sequence) -> Callable[[], None]:
        def work() -> None:
            method.engine = engine
            query = Query(images.clone())
            with query:
                method.step(query)

        return work

    def floor() -> None:
        parallel.map(lambda learner: bare_step(learner, ready), method.learners)

    variants = {"query": step(parallel), "floor": floor, "one": step(one_thread), "all": step(all_cores)}
    for work in variants.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, work in variants.items():
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)

    def ratio(above: str, below: str) -> float:
        return statistics.median(a / b for a, b in zip(seconds[above], seconds[below], strict=True))

    return Times(
        seconds_per_query=statistics.median(seconds["query"]),
        floor_seconds=statistics.median(seconds["floor"]),
        overhead=ratio("query", "floor"),
        speedup_over_one_thread=ratio("one", "query"),
        speedup_over_all_cores=ratio("all", "query"),
        rounds=rounds,
    )


@dataclass(frozen=True)
class Ready:
    """Tensors as a learner's networks take them, with nothing left to prepare."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, case: Case) -> "Ready":
        images = torch.rand(case.query, *case.shape).contiguous(memory_format=torch.channels_last)
        return cls(images, torch.arange(case.query) % case.classes)


def bare_step(learner: Learner, ready: Ready) -> None:
    """The compute floor of a query: three forwards with their backwards, one optimiser step, one prediction."""
    network = learner.network
    network.train()
    for _ in range(3):
        F.cross_entropy(network(ready.images), ready.labels).backward()
    learner.optimiser.step()
    learner.optimiser.zero_grad(set_to_none=True)
    network.eval()
    with torch.no_grad():
        network(ready.images)


def measure_memory(case: Case, queries: int) -> Memory:
    """Resident memory after a tenth of the queries and after all of them."""
    method = make_method(case)
    generator = Generator().manual_seed(0)
    early, memory = max(1, queries // 10), {}
    for number in range(1, queries + 1):
        with Query(torch.rand(case.memory_query, *case.shape, generator=generator)) as query:
            method.step(query)
        if number in (early, queries):
            memory[number] = resident_memory()
    return Memory(
        early_queries=early,
        early_mb=memory[early],
        late_queries=queries,
        late_mb=memory[queries],
        growth=memory[queries] / memory[early] - 1,
        query_size=case.memory_query,
    )


def make_method(case: Case) -> CroDoBo:
    """CroDoBo on random images; what it learns does not matter here."""
    images = torch.randint(256, (1000, *case.shape), dtype=torch.uint8, generator=Generator().manual_seed(0))
    source = Source(images, torch.arange(1000) % case.classes)
    return CroDoBo(source, learners=case.learners, backbone=case.backbone, warmup=0)


def resident_memory() -> float:
    """Memory that this process holds now, in megabytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
