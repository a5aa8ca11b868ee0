"""A benchmark out of images on disk: two listings, one set of classes, one shape."""

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch

from crodobo.config import Classes, DataSettings, Fit, Renaming, Views
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.data.benchmark import Benchmark
from crodobo.data.classes import common_names, rename
from crodobo.data.images import DecodedOnRead
from crodobo.data.listing import Columns, Listing, read_listing
from crodobo.data.pictures import Shape
from crodobo.data.presets import Domain, Preset
from crodobo.data.store import stored
from crodobo.engine import available_cores
from crodobo.errors import BadImage, BadSettings
from crodobo.views.augment import Augment

DEFAULT_SIZE = 64


def stamp_of(listing: Listing, names: list[str]) -> str:
    """Changes when a source does: its images, their labels, the order of the classes."""
    content = repr((listing.pictures.stamp(), list(listing.labels), names))
    return f"{len(listing.labels)} images, {hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()[:16]}"


def read_source(data: DataSettings, preset: Preset | None) -> Listing:
    """The labelled public images, under common class names."""
    return _read("source", data, preset)


def read_target(data: DataSettings, preset: Preset | None) -> Listing:
    """The target's images with the labels that they are scored by, under common class names."""
    return _read("target", data, preset)


def _read(side: Literal["source", "target"], data: DataSettings, preset: Preset | None) -> Listing:
    path: Path | None = getattr(data, side)
    columns: Columns | None = getattr(data, f"{side}_columns")
    if preset:
        domain: Domain = getattr(preset, side)
        listing = domain.read(data.folder, path, columns)
    elif path:
        listing = read_listing(path, columns)
    else:
        raise BadSettings(f"there is no {side}; name it with --{side} PATH")
    renaming: Renaming = getattr(classes_of(data, preset), side)
    return rename(listing, renaming, side, strict=data.classes is not None)


def classes_of(data: DataSettings, preset: Preset | None) -> Classes:
    """The user's classes, or the preset's."""
    return data.classes or (preset.classes if preset else Classes())


def make_source(
    listing: Listing,
    names: list[str],
    data: DataSettings,
    size: int,
    cache_size: float,
    observer: Observer,
) -> Source:
    """The source's images, from the cache or decoded into it."""
    if data.source_limit:
        listing = sampled(listing, data.source_limit)
    shape = shape_of(data, size)
    if data.skip_broken:
        listing = sound(listing, shape, data.fit, observer)
    limit = cache_size * 1e9
    images = stored(listing.pictures, shape, data.fit, limit=limit, progress=observer.reading, note=observer.note)
    return Source(images, [names.index(label) for label in listing.labels], names)


def assemble(
    name: str, data: DataSettings, preset: Preset | None, size: int | None, cache_size: float, observer: Observer
) -> Benchmark:
    """The benchmark: source from the cache, target decoded as it is read."""
    size = size_of(size, preset)
    source, target = read_source(data, preset), read_target(data, preset)
    names = common_names(source.counts, target.counts, classes_of(data, preset).names)
    if absent := [each for each in names if each not in target.counts]:
        observer.note(f"the target has no {', '.join(absent)}; these classes can only be mistaken for others")
    shape = shape_of(data, size)
    if data.skip_broken:
        target = sound(target, shape, data.fit, observer)
    stamp = repr((source.pictures.stamp(), target.pictures.stamp(), list(source.labels), list(target.labels)))
    return Benchmark(
        name=name,
        description=preset.title if preset else f"{source.where} → {target.where}",
        source=make_source(source, names, data, size, cache_size, observer),
        images=DecodedOnRead(target.pictures, shape, data.fit),
        labels=torch.tensor([names.index(label) for label in target.labels]),
        augment=augment_of(data, preset, size),
        metric=preset.metric if preset else "accuracy",
        public=preset is not None and data.target is None,  # a folder of one's own is not shown
        stamp=hashlib.sha256(stamp.encode()).hexdigest()[:16],
    )


def shape_of(data: DataSettings, size: int) -> Shape:
    """Channels, height and width of all images."""
    return (1 if data.grey else 3, size, size)


def size_of(given: int | None, preset: Preset | None) -> int:
    """Pixels a side: as given, the preset's, or the usual."""
    return given or (preset.run.get("image_size") if preset else None) or DEFAULT_SIZE


def augment_of(data: DataSettings, preset: Preset | None, size: int) -> Augment:
    """Views of images of that size: as the settings say, the preset, or as suits photographs."""
    views = data.views or (preset.views if preset else Views())
    margin = round(size / 14) if views.margin is None else views.margin
    return Augment(margin, views.resize, views.flip, views.operations, views.strength)


def sampled(listing: Listing, limit: int) -> Listing:
    """So many of the pictures, drawn at random but the same each time, at least one of every class."""
    order = list(range(len(listing.labels)))
    random.Random(0).shuffle(order)
    first = {listing.labels[number]: number for number in reversed(order)}
    if limit < len(first):
        raise BadSettings(f"source_limit cannot be {limit}: the source has {len(first)} classes")
    must = set(first.values())
    rest = [number for number in order if number not in must]
    return listing.chosen(sorted([*must, *rest[: limit - len(must)]]))


def sound(listing: Listing, shape: Shape, fit: Fit, observer: Observer) -> Listing:
    """The listing without pictures that cannot be decoded."""
    bad = broken(listing, shape, fit)
    if bad:
        observer.note(
            f"{len(bad)} of {len(listing.labels)} images of {listing.where} cannot be decoded and are left out"
        )
    return listing.chosen([number for number in range(len(listing.labels)) if number not in bad])


def broken(listing: Listing, shape: Shape, fit: Fit) -> dict[int, str]:
    """The pictures that cannot be decoded, by number, and why."""

    def problem(number: int) -> str | None:
        try:
            listing.pictures.read(number, shape, fit)
        except BadImage as error:
            return str(error)
        return None

    with ThreadPoolExecutor(available_cores()) as pool:
        problems = enumerate(pool.map(problem, range(len(listing.labels))))
        return {number: sentence for number, sentence in problems if sentence}
