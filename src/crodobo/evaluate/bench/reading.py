"""What reading images from a disk costs: time beside that of a query, and memory beside the size of the source."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from torch import Generator

from crodobo.config import DataSettings
from crodobo.core.query import Query
from crodobo.data import load_benchmark
from crodobo.evaluate.bench.engine import resident_memory
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method

DRAWS = 100  # mini-batches of the source that are drawn when memory is measured


def measure_reading(settings: RunSettings, *, rounds: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of a query, and of reading what it is made of; memory with all of the source and with a quarter of it.

    A round reads alone (a query of the target from its files, and a mini-batch of the source for each learner from the
    cache), and then takes the next query of a stream in which that reading goes on while the learners are at work.
    """
    benchmark = load_benchmark(
        settings.benchmark,
        settings.image_size,
        settings.data,
        cache_size=settings.cache_size,
    )
    options, size = settings.options, settings.query_size
    kind = get_method(settings.method)
    method = kind(benchmark.source, augment=benchmark.augment, **dict(options) | {"warmup": 0})
    order = benchmark.order(0).split(size)
    generator = Generator().manual_seed(0)
    read, waited, queries = [], [], []
    note(f"{settings.benchmark}: timing, {rounds} rounds")
    stream = benchmark.stream(size, 0, queries=rounds + 1)
    for number in range(rounds + 1):
        started = time.perf_counter()
        Query(benchmark.images[order[number % len(order)]]).burn()
        for _ in range(options.learners):
            benchmark.source.bootstrap(size, generator)
        reading = time.perf_counter() - started

        started = time.perf_counter()
        query, _ = next(stream)
        here = time.perf_counter()
        with query:
            method.step(query)
        if number:  # the first warms everything up
            read.append(reading)
            waited.append(here - started)
            queries.append(time.perf_counter() - started)
    note(f"{settings.benchmark}: memory, {DRAWS} mini-batches of the source")
    memory = {}
    for name, part in (("quarter", len(benchmark.source) // 4), ("whole", None)):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            memory[name] = pool.submit(measure_memory, settings, part).result()
    return {
        "benchmark": settings.benchmark,
        "backbone": options.backbone,
        "shape": benchmark.source.shape,
        "query": size,
        "learners": options.learners,
        "rounds": rounds,
        "seconds_per_query": statistics.median(queries),
        "reading_seconds": statistics.median(read),
        "reading_share": statistics.median(a / b for a, b in zip(read, queries, strict=True)),
        "waited_share": statistics.median(a / b for a, b in zip(waited, queries, strict=True)),
        "memory": memory,
    }


def measure_memory(settings: RunSettings, source_limit: int | None) -> dict[str, float]:
    """Resident memory after many draws from a source of that size, and the size of its pixels, in megabytes."""
    data = (settings.data or DataSettings()).model_copy(update={"source_limit": source_limit})
    benchmark = load_benchmark(
        settings.benchmark, settings.image_size, data if settings.data else None, cache_size=settings.cache_size
    )
    generator = Generator().manual_seed(0)
    for _ in range(DRAWS):
        benchmark.source.bootstrap(settings.query_size, generator)
    pixels = len(benchmark.source)
    for side in benchmark.source.shape:
        pixels *= side
    return {"resident_mb": resident_memory(), "source_mb": pixels / 2**20, "images": len(benchmark.source)}
