"""Benchmarks by name: built in, from presets, or of images of one's own. A built-in one is a line in `REGISTRY`."""

from collections.abc import Callable
from pathlib import Path

from crodobo.config import DataSettings
from crodobo.data import stream
from crodobo.data.assemble import DEFAULT_SIZE, Watcher, assemble, make_source, read_source
from crodobo.data.benchmark import Benchmark
from crodobo.data.classes import common_names
from crodobo.data.glyphs import glyphs
from crodobo.data.presets import get_preset, is_preset
from crodobo.errors import BadSettings
from crodobo.source import Source

REGISTRY: dict[str, Callable[[], Benchmark]] = {"glyphs": glyphs}

__all__ = ["REGISTRY", "Benchmark", "Watcher", "load_benchmark", "load_source", "stream"]


def load_benchmark(
    name: str,
    image_size: int | None = None,
    data: DataSettings | None = None,
    *,
    cache_size: float = 50.0,
    watcher: Watcher | None = None,
) -> Benchmark:
    """The benchmark of that name, at its own image size or another.

    Parameters
    ----------
    name
        A built-in benchmark, a preset, or any name where `data` has both a source and a target.
    image_size
        Pixels a side.
    data
        Where its images are, unless they are built in.
    cache_size
        Gigabytes that decoded sources may take in the cache.
    watcher
        Told what is done.

    Examples
    --------
    >>> load_benchmark("glyphs").source
    Source(12000 samples of 1×32×32, 10 classes)
    """
    if name in REGISTRY:
        if data and data != DataSettings():
            raise BadSettings(f"{name} has its own data; leave --data, --source and --target out, or name no benchmark")
        benchmark = REGISTRY[name]()
        return benchmark.resized(image_size) if image_size else benchmark
    if not is_preset(name) and not (data and data.source and data.target):
        raise BadSettings(
            f"there is no benchmark {name!r}; the benchmarks are {', '.join(REGISTRY)} and the presets that "
            "`crodobo data` lists; --source and --target take images of your own"
        )
    preset = get_preset(name) if is_preset(name) else None
    return assemble(name, data or DataSettings(), preset, image_size, cache_size, watcher or Watcher())


def load_source(
    path: str | Path,
    image_size: int = DEFAULT_SIZE,
    *,
    grey: bool = False,
    cache_size: float = 50.0,
    watcher: Watcher | None = None,
) -> Source:
    """Labelled images on a disk: a folder of class folders, a list, a table or IDX files.

    They are decoded once into the cache, and come into memory only as they are drawn.
    """
    data = DataSettings(source=Path(path), grey=grey)
    listing = read_source(data, None)
    names = common_names(listing.counts, {}, None)
    return make_source(listing, names, data, image_size, cache_size, watcher or Watcher())
