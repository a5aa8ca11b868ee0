"""Source and target from images on disk: two listings, one set of classes, one shape."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from crodobo.config import Classes, Columns, DataSettings, Renaming, Views
from crodobo.core.observer import Observer
from crodobo.core.source import Source
from crodobo.data.benchmark import Benchmark, Public
from crodobo.data.classes import common_names, rename
from crodobo.data.images import DecodedOnRead
from crodobo.data.listing import Listing, read_listing
from crodobo.data.pictures import Shape
from crodobo.data.presets import Domain, Preset
from crodobo.data.selection import sample, without_broken
from crodobo.data.store import load_or_decode
from crodobo.errors import BadSettings
from crodobo.views.augment import Augment

DEFAULT_SIZE = 64
Side = Literal["source", "target"]
SIDES: tuple[Side, ...] = ("source", "target")


@dataclass(frozen=True)
class DiskData:
    """Images on disk, as settings and perhaps a preset describe them. Settings override the preset."""

    settings: DataSettings
    preset: Preset | None = None
    image_size: int | None = None

    @property
    def size(self) -> int:
        """Pixels per side of all images."""
        return self.image_size or (self.preset.run.get("image_size") if self.preset else None) or DEFAULT_SIZE

    @property
    def shape(self) -> Shape:
        """Channels, height and width of all images."""
        return (1 if self.settings.grey else 3, self.size, self.size)

    @property
    def classes(self) -> Classes:
        """How classes are renamed and ordered."""
        return self.settings.classes or (self.preset.classes if self.preset else Classes())

    @property
    def augment(self) -> Augment:
        """How views of the images are made. The default suits photographs."""
        views = self.settings.views or (self.preset.views if self.preset else Views())
        margin = round(self.size / 14) if views.margin is None else views.margin
        return Augment(margin, views.resize, views.flip, views.operations, views.strength)

    def read(self, side: Side) -> Listing:
        """List the images of one side with their labels, under common class names."""
        path: Path | None = getattr(self.settings, side)
        columns: Columns | None = getattr(self.settings, f"{side}_columns")
        if self.preset:
            domain: Domain = getattr(self.preset, side)
            listing = domain.read(self.settings.folder, path, columns)
        elif path:
            listing = read_listing(path, columns)
        else:
            raise BadSettings(f"There is no {side}.", f"Name the images of the {side}.", settings=(side,))
        renaming: Renaming = getattr(self.classes, side)
        return rename(listing, renaming, side, strict=self.settings.classes is not None)

    def list_public(self) -> "PublicListing":
        """List the source."""
        source = self.read("source")
        return PublicListing(self, source, common_names(source.counts, {}, self.classes.names))

    def benchmark(self, name: str, cache_size: float, observer: Observer) -> Benchmark:
        """The benchmark: the source from the cache, the target decoded as it is read."""
        source, target = self.read("source"), self.read("target")
        names = common_names(source.counts, target.counts, self.classes.names)
        if absent := [each for each in names if each not in target.counts]:
            observer.note(f"The target has no {', '.join(absent)}. Predictions of these classes are always wrong.")
        if self.settings.skip_broken:
            target = without_broken(target, self.shape, self.settings.fit, observer)
        stamp = repr((source.pictures.stamp(), target.pictures.stamp(), list(source.labels), list(target.labels)))
        return Benchmark(
            name=name,
            description=self.preset.title if self.preset else f"{source.where} → {target.where}",
            source=PublicListing(self, source, names).load_source(cache_size, observer),
            images=DecodedOnRead(target.pictures, self.shape, self.settings.fit),
            labels=torch.tensor([names.index(label) for label in target.labels]),
            augment=self.augment,
            metric=self.preset.metric if self.preset else "accuracy",
            public=self.preset is not None and self.settings.target is None,  # the user's own images are not shown
            stamp=hashlib.sha256(stamp.encode()).hexdigest()[:16],
        )


@dataclass(frozen=True)
class PublicListing:
    """The source as a list: its images are not decoded yet, so it is quick to make."""

    data: DiskData
    listing: Listing
    classes: list[str]

    @cached_property
    def stamp(self) -> str:
        """Changes with the images, their labels and the order of the classes."""
        content = repr((self.listing.pictures.stamp(), list(self.listing.labels), self.classes))
        digest = hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()[:16]
        return f"{len(self.listing.labels)} images, {digest}"

    def load(self, cache_size: float = 50.0, observer: Observer | None = None) -> Public:
        """Decode the source, or map it from the cache, which holds at most `cache_size` gigabytes."""
        return Public(self.load_source(cache_size, observer or Observer()), self.data.augment, self.stamp)

    def load_source(self, cache_size: float, observer: Observer) -> Source:
        """The source alone, without its stamp."""
        listing, settings, shape = self.listing, self.data.settings, self.data.shape
        if settings.source_limit:
            listing = sample(listing, settings.source_limit)
        if settings.skip_broken:
            listing = without_broken(listing, shape, settings.fit, observer)
        images = load_or_decode(listing.pictures, shape, settings.fit, limit=cache_size * 1e9, observer=observer)
        return Source(images, [self.classes.index(label) for label in listing.labels], self.classes)
