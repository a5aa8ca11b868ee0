"""The cost of reading images from a disk: time against that of a query, and memory against the size of the source.

python benchmarks/reading.py --preset fashion-photos --source FASHION-MNIST --target CLOTHING [--rounds 5]
python benchmarks/reading.py --source PUBLIC --target PRIVATE [--backbone resnet18] [--image-size 224]
"""

import argparse
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from torch import Generator

from crodobo.config import DataSettings
from crodobo.core.query import Query
from crodobo.data import Benchmark, load_benchmark
from crodobo.data.classes import read_classes
from crodobo.data.presets import get_preset
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import CroDoBo
from speed import note, resident_memory, write_and_print  # sets the environment before torch loads

DRAWS = 100  # mini-batches of the source, when memory is measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", help="a preset of `crodobo data`")
    parser.add_argument("--data", type=Path, dest="folder", help="the folder of the preset's data")
    parser.add_argument("--source", type=Path, help="labelled images")
    parser.add_argument("--target", type=Path, help="images to adapt to, with labels")
    parser.add_argument("--classes", type=Path, help="TOML that maps, merges and drops classes")
    parser.add_argument("--image-size", type=int, help="pixels on each side")
    parser.add_argument("--backbone", help="small, a timm name, or torchvision/NAME")
    parser.add_argument("--pretrained", action=argparse.BooleanOptionalAction, help="download pretrained weights")
    parser.add_argument("--weights", type=Path, help="initial backbone weights (.safetensors, .pth)")
    parser.add_argument("--query-size", type=int, help="samples in a query")
    parser.add_argument("--cache-size", type=float, help="gigabytes for decoded sources")
    parser.add_argument("--rounds", type=int, default=5, help="timing rounds")
    parser.add_argument("--out", type=Path, default=Path("runs/reading.json"), help="the JSON file to write")
    arguments = parser.parse_args()
    if not arguments.preset and not (arguments.source and arguments.target):
        parser.error("name a --preset, or --source and --target")

    result = measure(make_settings(arguments), arguments.rounds)
    rows = [
        ["time per query", f"{result['seconds_per_query']:.3f} s"],
        ["reading and decoding, alone", f"{result['reading_seconds']:.3f} s"],
        ["share of the time per query", f"{result['reading_share']:.1%}"],
        ["waiting, with reading ahead", f"{result['waited_share']:.1%}"],
    ]
    for part in result["memory"].values():
        label = f"memory, source of {part['images']:,.0f} images ({part['source_mb']:,.0f} MB)"
        rows.append([label, f"{part['resident_mb']:.0f} MB"])
    head = ["", f"{result['benchmark']}, {result['backbone']}, {result['shape'][-1]} px"]
    write_and_print(arguments.out, result, head, rows)


def make_settings(arguments: argparse.Namespace) -> RunSettings:
    """The settings of the preset, overridden by the arguments."""

    def given(*names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(arguments, name)) is not None}

    options, run, data = {}, {}, {}
    if arguments.preset:
        preset = get_preset(arguments.preset)
        options, run, data = dict(preset.options), preset.run, preset.data
        if arguments.backbone or arguments.weights:
            options.pop("pretrained", None)  # the preset's weights belong to the preset's backbone
    elif (arguments.backbone or "small") != "small":
        run = {"image_size": 224}
    options |= given("backbone", "pretrained", "weights") | {"warmup": 0}
    data |= {name: path.expanduser().absolute() for name, path in given("folder", "source", "target").items()}
    if arguments.classes:
        data["classes"] = read_classes(arguments.classes)
    return RunSettings.of(
        benchmark=arguments.preset or f"{arguments.source.stem}-to-{arguments.target.stem}",
        options=CroDoBo.Settings.of(**options),
        **run | given("image_size", "query_size", "cache_size") | {"data": DataSettings.of(**data)},
    )


def load(settings: RunSettings, data: DataSettings | None) -> Benchmark:
    return load_benchmark(settings.benchmark, settings.image_size, data, cache_size=settings.cache_size)


def measure(settings: RunSettings, rounds: int) -> dict[str, Any]:
    """Seconds of a query and of reading its images; memory with the whole source and with a quarter of it.

    Each round first only reads: a query of the target from its files, and a mini-batch of the source for each learner
    from the cache. Then it processes the next query of a stream that reads ahead while the learners work.
    """
    benchmark = load(settings, settings.data)
    options, size = settings.options, settings.query_size
    method = CroDoBo(benchmark.source, augment=benchmark.augment, **dict(options))
    order = benchmark.order(0).split(size)
    generator = Generator().manual_seed(0)
    reading, waiting, querying = [], [], []
    note(f"{settings.benchmark}: timing, {rounds} rounds")
    stream = benchmark.stream(size, 0, queries=rounds + 1)
    for number in range(rounds + 1):
        started = time.perf_counter()
        Query(benchmark.images[order[number % len(order)]]).burn()
        for _ in range(options.learners):
            benchmark.source.bootstrap(size, generator)
        read = time.perf_counter() - started

        started = time.perf_counter()
        query, _ = next(stream)
        received = time.perf_counter()
        with query:
            method.step(query)
        if number:  # the first round warms up
            reading.append(read)
            waiting.append(received - started)
            querying.append(time.perf_counter() - started)
    note(f"{settings.benchmark}: memory, {DRAWS} mini-batches of the source")
    memory = {}
    for name, limit in (("quarter", len(benchmark.source) // 4), ("whole", None)):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            memory[name] = pool.submit(measure_memory, settings, limit).result()
    return {
        "benchmark": settings.benchmark,
        "backbone": options.backbone,
        "shape": benchmark.source.shape,
        "query": size,
        "learners": options.learners,
        "rounds": rounds,
        "seconds_per_query": statistics.median(querying),
        "reading_seconds": statistics.median(reading),
        "reading_share": statistics.median(a / b for a, b in zip(reading, querying, strict=True)),
        "waited_share": statistics.median(a / b for a, b in zip(waiting, querying, strict=True)),
        "memory": memory,
    }


def measure_memory(settings: RunSettings, source_limit: int | None) -> dict[str, float]:
    """Resident memory after many draws from a source of this size, and the size of its pixels, in megabytes."""
    assert settings.data
    benchmark = load(settings, settings.data.model_copy(update={"source_limit": source_limit}))
    generator = Generator().manual_seed(0)
    for _ in range(DRAWS):
        benchmark.source.bootstrap(settings.query_size, generator)
    pixels = len(benchmark.source) * math.prod(benchmark.source.shape)
    return {"resident_mb": resident_memory(), "source_mb": pixels / 2**20, "images": len(benchmark.source)}


if __name__ == "__main__":
    main()
