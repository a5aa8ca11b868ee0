"""Data by name: built-in benchmarks (`REGISTRY`), presets, or the user's own images."""

from collections.abc import Callable
from pathlib import Path

from crodobo.config import Classes, DataSettings, Fit, nearest
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.data import stream
from crodobo.data.benchmark import Benchmark, Public
from crodobo.data.disk import DEFAULT_SIZE, DiskData, PublicListing
from crodobo.data.glyphs import glyphs
from crodobo.data.presets import get_preset, is_preset, preset_names
from crodobo.errors import BadSettings

REGISTRY: dict[str, Callable[[], Benchmark]] = {"glyphs": glyphs}

__all__ = ["REGISTRY", "Benchmark", "Public", "list_public", "load_benchmark", "load_public", "load_source", "stream"]


def load_benchmark(
    name: str,
    image_size: int | None = None,
    data: DataSettings | None = None,
    *,
    cache_size: float = 50.0,
    observer: Observer | None = None,
) -> Benchmark:
    """Load a benchmark by name.

    Parameters
    ----------
    name
        A built-in benchmark, a preset, or any name if `data` has both a source and a target.
    image_size
        Pixels per side. The default is the benchmark's own size.
    data
        Where the images are, unless they are built in.
    cache_size
        Gigabytes that decoded sources may take in the cache.
    observer
        Receives progress.

    Examples
    --------
    >>> load_benchmark("glyphs").source
    Source(12000 samples of 1×32×32, 10 classes)
    """
    if name in REGISTRY:
        if data and data != DataSettings():
            remedy = "Leave out the settings of the data, or the benchmark."
            raise BadSettings(f"{name} has its own data.", remedy, settings=("folder", "source", "target", "benchmark"))
        benchmark = REGISTRY[name]()
        return benchmark.resized(image_size) if image_size else benchmark
    if not is_preset(name) and not (data and data.source and data.target):
        remedy = f"Choose {', '.join(REGISTRY)} or a preset, or give a source and a target of your own."
        if near := nearest(name, [*REGISTRY, *preset_names()]):
            remedy = f"Did you mean {near}?"
        raise BadSettings(f"There is no benchmark {name!r}.", remedy, settings=("benchmark", "source", "target"))
    return _on_disk(name, image_size, data).benchmark(name, cache_size, observer or Observer())


def list_public(name: str, image_size: int | None = None, data: DataSettings | None = None) -> PublicListing:
    """List the source of a preset or of the user's own data without decoding it; `load` decodes it.

    The parameters are those of `load_benchmark`.
    """
    return _on_disk(name, image_size, data).list_public()


def load_public(
    name: str,
    image_size: int | None = None,
    data: DataSettings | None = None,
    *,
    cache_size: float = 50.0,
    observer: Observer | None = None,
) -> Public:
    """Load the public half of a benchmark, a preset or the user's own data.

    The parameters are those of `load_benchmark`; a target is not needed.
    """
    if name in REGISTRY:
        benchmark = load_benchmark(name, image_size, data)
        return Public(benchmark.source, benchmark.augment, benchmark.stamp, name)
    return list_public(name, image_size, data).load(cache_size, observer)


def load_source(
    path: str | Path,
    image_size: int = DEFAULT_SIZE,
    *,
    columns: tuple[str, str] | None = None,
    classes: Classes | None = None,
    limit: int | None = None,
    fit: Fit = "squash",
    grey: bool = False,
    skip_broken: bool = False,
    cache_size: float = 50.0,
    observer: Observer | None = None,
) -> Source:
    """Load labelled images from disk: a folder of class folders, a list, a table or IDX files.

    They are decoded once, into the cache, and read from there as they are needed.

    Parameters
    ----------
    path
        Where the images are.
    image_size
        Pixels per side of all images.
    columns
        The columns of images and labels in a table, if they have no usual names.
    classes
        Common names of classes. `crodobo.data.classes.read_classes` reads them from a file.
    limit
        Use only this many images.
    fit
        How images become square: squash, crop or pad.
    grey
        Use one channel instead of three.
    skip_broken
        Leave out images that cannot be decoded.
    cache_size
        Gigabytes that decoded sources may take in the cache.
    observer
        Receives progress.
    """
    how = {"source_columns": columns, "classes": classes, "source_limit": limit, "fit": fit, "grey": grey}
    data = DataSettings.of(source=Path(path), skip_broken=skip_broken, **how)
    return DiskData(data, None, image_size).list_public().load_source(cache_size, observer or Observer())


def _on_disk(name: str, image_size: int | None, data: DataSettings | None) -> DiskData:
    return DiskData(data or DataSettings(), get_preset(name) if is_preset(name) else None, image_size)
