"""A benchmark out of images on disk: two listings, one set of classes, one shape."""

import hashlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from crodobo.augment import Augment
from crodobo.config import Classes, DataSettings, Fit, Views
from crodobo.data.benchmark import Benchmark
from crodobo.data.classes import common_names, rename
from crodobo.data.images import DecodedOnRead
from crodobo.data.listing import Listing, read_listing
from crodobo.data.pictures import Pictures, Shape
from crodobo.data.presets import Preset
from crodobo.data.store import stored
from crodobo.engine import available_cores
from crodobo.errors import BadImage, BadSettings
from crodobo.source import Source

DEFAULT_SIZE = 64


@dataclass(frozen=True)
class Watcher:
    """Told what is done while data is read. This one keeps silent."""

    note: Callable[[str], None] = lambda text: None
    progress: Callable[[int, int], None] = lambda done, total: None


def read_source(data: DataSettings, preset: Preset | None) -> Listing:
    """The labelled public images, under common class names."""
    if preset:
        listing = preset.source.read(data.folder, data.source, data.source_columns)
    elif data.source:
        listing = read_listing(data.source, data.source_columns)
    else:
        raise BadSettings("there is no source; name it with --source PATH")
    return rename(listing, classes_of(data, preset).source, "source", strict=data.classes is not None)


def read_target(data: DataSettings, preset: Preset | None) -> Listing:
    """The target's images with the labels that they are scored by, under common class names."""
    if preset:
        listing = preset.target.read(data.folder, data.target, data.target_columns)
    elif data.target:
        listing = read_listing(data.target, data.target_columns)
    else:
        raise BadSettings("there is no target; name it with --target PATH")
    return rename(listing, classes_of(data, preset).target, "target", strict=data.classes is not None)


def classes_of(data: DataSettings, preset: Preset | None) -> Classes:
    """The user's classes, or the preset's."""
    return data.classes or (preset.classes if preset else Classes())


def make_source(
    listing: Listing,
    names: list[str],
    data: DataSettings,
    size: int,
    cache_size: float,
    watcher: Watcher,
) -> Source:
    """The source's images, from the cache or decoded into it."""
    if data.source_limit:
        listing = sampled(listing, data.source_limit)
    shape = shape_of(data, size)
    if data.skip_broken:
        listing = sound(listing, shape, data.fit, watcher)
    limit = cache_size * 1e9
    images = stored(listing.pictures, shape, data.fit, limit=limit, progress=watcher.progress, note=watcher.note)
    return Source(images, [names.index(label) for label in listing.labels], names)


def assemble(
    name: str, data: DataSettings, preset: Preset | None, size: int | None, cache_size: float, watcher: Watcher
) -> Benchmark:
    """The benchmark: source from the cache, target decoded as it is read."""
    size = size or (preset.run.get("image_size") if preset else None) or DEFAULT_SIZE
    source, target = read_source(data, preset), read_target(data, preset)
    names = common_names(source.counts, target.counts, classes_of(data, preset).names)
    if absent := [each for each in names if each not in target.counts]:
        watcher.note(f"the target has no {', '.join(absent)}; these classes can only be mistaken for others")
    shape = shape_of(data, size)
    if data.skip_broken:
        target = sound(target, shape, data.fit, watcher)
    stamp = repr((source.pictures.stamp(), target.pictures.stamp(), list(source.labels), list(target.labels)))
    return Benchmark(
        name=name,
        description=preset.title if preset else f"{source.where} → {target.where}",
        source=make_source(source, names, data, size, cache_size, watcher),
        images=DecodedOnRead(target.pictures, shape, data.fit),
        labels=torch.tensor([names.index(label) for label in target.labels]),
        augment=augment_of(data.views or (preset.views if preset else Views()), size),
        metric=preset.metric if preset else "accuracy",
        public=preset is not None and data.target is None,  # a folder of one's own is not shown
        stamp=hashlib.sha256(stamp.encode()).hexdigest()[:16],
    )


def shape_of(data: DataSettings, size: int) -> Shape:
    """Channels, height and width of all images."""
    return (1 if data.grey else 3, size, size)


def augment_of(views: Views, size: int) -> Augment:
    """Views of images of that size."""
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


def sound(listing: Listing, shape: Shape, fit: Fit, watcher: Watcher) -> Listing:
    """The listing without pictures that cannot be decoded."""
    with ThreadPoolExecutor(available_cores()) as pool:
        numbers = range(len(listing.labels))
        readable = pool.map(lambda number: _can_be_read(listing.pictures, number, shape, fit), numbers)
        good = [number for number, can in zip(numbers, readable, strict=True) if can]
    if left_out := len(listing.labels) - len(good):
        watcher.note(
            f"{left_out} of {len(listing.labels)} images of {listing.where} cannot be decoded and are left out"
        )
    return listing.chosen(good)


def _can_be_read(pictures: Pictures, number: int, shape: Shape, fit: Fit) -> bool:
    try:
        pictures.read(number, shape, fit)
    except BadImage:
        return False
    return True
