"""Benchmarks by name: built in, from presets, or of images of one's own. A built-in one is a line in `REGISTRY`."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from crodobo.config import Classes, DataSettings, Fit
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.data import stream
from crodobo.data.assemble import (
    DEFAULT_SIZE,
    assemble,
    augment_of,
    classes_of,
    make_source,
    read_source,
    size_of,
    stamp_of,
)
from crodobo.data.benchmark import Benchmark
from crodobo.data.classes import common_names
from crodobo.data.glyphs import glyphs
from crodobo.data.presets import get_preset, is_preset, preset_names
from crodobo.errors import BadSettings
from crodobo.views.augment import Augment

REGISTRY: dict[str, Callable[[], Benchmark]] = {"glyphs": glyphs}

__all__ = ["REGISTRY", "Benchmark", "Public", "load_benchmark", "load_public", "load_source", "stream"]


def load_benchmark(
    name: str,
    image_size: int | None = None,
    data: DataSettings | None = None,
    *,
    cache_size: float = 50.0,
    observer: Observer | None = None,
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
    observer
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
        if near := difflib.get_close_matches(name, preset_names(), n=1, cutoff=0.75):
            raise BadSettings(f"there is no benchmark {name!r}; did you mean {near[0]}?")
        raise BadSettings(
            f"there is no benchmark {name!r}; the benchmarks are {', '.join(REGISTRY)} and the presets that "
            "`crodobo data` lists; --source and --target take images of your own"
        )
    preset = get_preset(name) if is_preset(name) else None
    return assemble(name, data or DataSettings(), preset, image_size, cache_size, observer or Observer())


class Public(NamedTuple):
    """The public half of a benchmark: the source, how views of images are made, and a stamp of the source."""

    source: Source
    augment: Augment
    stamp: str
    name: str = ""


def load_public(
    name: str,
    image_size: int | None = None,
    data: DataSettings | None = None,
    *,
    cache_size: float = 50.0,
    observer: Observer | None = None,
) -> Public:
    """The public half of a benchmark, a preset or one's own data.

    The parameters are those of `load_benchmark`; a target is not needed.
    """
    if name in REGISTRY:
        benchmark = load_benchmark(name, image_size, data)
        return Public(benchmark.source, benchmark.augment, benchmark.stamp, name)
    data = data or DataSettings()
    preset = get_preset(name) if is_preset(name) else None
    size, listing = size_of(image_size, preset), read_source(data, preset)
    names = common_names(listing.counts, {}, classes_of(data, preset).names)
    source = make_source(listing, names, data, size, cache_size, observer or Observer())
    return Public(source, augment_of(data, preset, size), stamp_of(listing, names), name)


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
    """Labelled images on a disk: a folder of class folders, a list, a table or IDX files.

    They are decoded once into the cache, and come into memory only as they are drawn.

    Parameters
    ----------
    path
        Where they are.
    image_size
        Pixels a side, of all images.
    columns
        Of a table: that of the images and that of the labels, where they have no usual names.
    classes
        Common names for classes; `crodobo.data.classes.read_classes` reads them from a file.
    limit
        Use so many of the images.
    fit
        How images become square: squash, crop or pad.
    grey
        One channel instead of three.
    skip_broken
        Leave out images that cannot be decoded.
    cache_size
        Gigabytes that decoded sources may take in the cache.
    observer
        Told what is done.
    """
    data = DataSettings(
        source=Path(path),
        source_columns=columns,
        classes=classes,
        source_limit=limit,
        fit=fit,
        grey=grey,
        skip_broken=skip_broken,
    )
    listing = read_source(data, None)
    names = common_names(listing.counts, {}, classes.names if classes else None)
    return make_source(listing, names, data, image_size, cache_size, observer or Observer())
