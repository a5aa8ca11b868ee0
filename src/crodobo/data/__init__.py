"""Benchmarks by name. A new one is a file here and a line in `REGISTRY`."""

from collections.abc import Callable

from crodobo.data import stream
from crodobo.data.benchmark import Benchmark
from crodobo.data.glyphs import glyphs
from crodobo.errors import BadSettings

REGISTRY: dict[str, Callable[[], Benchmark]] = {"glyphs": glyphs}

__all__ = ["REGISTRY", "Benchmark", "load_benchmark", "stream"]


def load_benchmark(name: str, image_size: int | None = None) -> Benchmark:
    """The benchmark of that name, at its own image size or another.

    >>> load_benchmark("glyphs").source
    Source(12000 samples of 1×32×32, 10 classes)
    """
    if name not in REGISTRY:
        raise BadSettings(f"there is no benchmark {name!r}; the benchmarks are {', '.join(REGISTRY)}")
    benchmark = REGISTRY[name]()
    return benchmark.resized(image_size) if image_size else benchmark
