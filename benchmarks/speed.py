"""Speed and memory of CroDoBo with one step per query, as ratios that hold on a noisy machine.

All variants are timed in one process, in turns: each round times every variant once, and a ratio is the median of the
ratios of the rounds. Memory is measured in a process of its own, where nothing from before can hide a leak.

    python benchmarks/speed.py [--case glyphs] [--rounds N] [--queries 500] [--out runs/speed.json]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch loads

import torch
from rich.console import Console
from rich.table import Table
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.engine import Parallel, Sequence, available_cores
from crodobo.methods import CroDoBo
from crodobo.nn.learner import Learner
from crodobo.storage.files import write_atomically


@dataclass(frozen=True)
class Case:
    """CroDoBo with a backbone, on random images of a shape."""

    name: str
    backbone: str
    shape: tuple[int, int, int]
    rounds: int
    memory_query: int  # samples in a query when memory is measured
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


ROWS = {
    "time per query": "{times[seconds_per_query]:.3f} s",
    "compute floor": "{times[floor_seconds]:.3f} s",
    "overhead": "{times[overhead]:.2f}",
    "speed-up over one thread": "{times[speedup_over_one_thread]:.2f}",
    "speed-up over all cores inside": "{times[speedup_over_all_cores]:.2f}",
    "memory early": "{memory[early_mb]:.0f} MB at query {memory[early_queries]}",
    "memory late": "{memory[late_mb]:.0f} MB at query {memory[late_queries]}",
    "memory growth": "{memory[growth]:.1%}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser, "runs/speed.json")
    parser.add_argument("--queries", type=int, default=500, help="queries of the memory run, at least 10")
    arguments = parser.parse_args()
    if arguments.queries < 10:
        parser.error("--queries must be at least 10")
    results = [measure(CASES[name], arguments.rounds, arguments.queries) for name in arguments.case or CASES]
    rows = [[label, *(pattern.format(**result) for result in results)] for label, pattern in ROWS.items()]
    write_and_print(arguments.out, results, ["", *(result["case"]["name"] for result in results)], rows)


def add_case_options(parser: argparse.ArgumentParser, out: str) -> None:
    """The options that all measurements of cases share."""
    parser.add_argument("--case", action="append", choices=list(CASES), help="measure this case (default: all)")
    parser.add_argument("--rounds", type=int, help="timing rounds (default: 20 for glyphs, 7 for resnet18-64px)")
    parser.add_argument("--out", type=Path, default=Path(out), help="the JSON file to write")


def write_and_print(out: Path, result: Any, head: list[str], rows: list[list[str]]) -> None:
    """Write a result as JSON, print it as a table, then print the path."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps(result, indent=2) + "\n")
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print(out)


def note(text: str) -> None:
    """Print what is measured now."""
    Console(stderr=True).print(text, highlight=False)


def measure(case: Case, rounds: int | None, queries: int) -> dict[str, Any]:
    """All numbers of a case."""
    note(f"{case.name}: timing, {rounds or case.rounds} rounds")
    times = measure_times(case, rounds or case.rounds)
    note(f"{case.name}: memory, {queries} queries of {case.memory_query}")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        memory = pool.submit(measure_memory, case, queries).result()
    return {"case": asdict(case), "cores": available_cores(), "times": asdict(times), "memory": asdict(memory)}


def measure_times(case: Case, rounds: int) -> Times:
    """Time per query against the compute floor, and parallel learners against learners in sequence."""
    method = make_method(case)
    images = torch.rand(case.query, *case.shape)
    parallel = Parallel(workers=case.learners, threads=1)
    one_thread, all_cores = Sequence(threads=1), Sequence(threads=available_cores())
    batch = Batch.of(case)

    def step(engine: Parallel | Sequence) -> Callable[[], None]:
        def work() -> None:
            method.engine = engine
            query = Query(images.clone())
            with query:
                method.step(query)

        return work

    def floor() -> None:
        parallel.map(lambda learner: bare_step(learner, batch), method.learners)

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
class Batch:
    """Images and labels that a network takes as they are."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, case: Case) -> "Batch":
        images = torch.rand(case.query, *case.shape).contiguous(memory_format=torch.channels_last)
        return cls(images, torch.arange(case.query) % case.classes)


def bare_step(learner: Learner, batch: Batch) -> None:
    """The compute floor of a query: three forwards with their backwards, one optimiser step, one prediction."""
    network = learner.network
    network.train()
    for _ in range(3):
        F.cross_entropy(network(batch.images), batch.labels).backward()
    learner.optimiser.step()
    learner.optimiser.zero_grad(set_to_none=True)
    network.eval()
    with torch.no_grad():
        network(batch.images)


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
    """CroDoBo on random images. The speed does not depend on what it learns."""
    images = torch.randint(256, (1000, *case.shape), dtype=torch.uint8, generator=Generator().manual_seed(0))
    source = Source(images, torch.arange(1000) % case.classes)
    return CroDoBo(source, learners=case.learners, backbone=case.backbone, warmup=0, steps=1)


def resident_memory() -> float:
    """The resident memory of this process, in megabytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
