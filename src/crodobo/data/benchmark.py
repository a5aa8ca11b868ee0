"""Benchmark: a labelled source, and a target whose labels only the protocol sees."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.core import pixels
from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data.order import stream_order
from crodobo.data.prefetch import prefetch
from crodobo.errors import BadSource
from crodobo.views.augment import Augment


class Public(NamedTuple):
    """The public half of a benchmark: the source, how views are made, and a stamp that changes with the source."""

    source: Source
    augment: Augment
    stamp: str
    name: str = ""  # of a built-in benchmark, whose stamp is empty


@dataclass(frozen=True)
class Benchmark:
    """Source, target, and how views of their images are made.

    Parameters
    ----------
    name, description
        For reports.
    source
        The labelled public data.
    images, labels
        The target. It arrives as a stream, and its labels are used for scoring only.
    augment
        How weak and strong views are made.
    metric
        The usual metric of this benchmark: `accuracy` over all samples, or `class-average`, the mean over classes.
    stamp
        Changes with the data on disk. Empty for built-in data.
    public
        Whether the target is public, so that reports may show samples of it.
    """

    name: str
    description: str
    source: Source
    images: pixels.Images
    labels: Tensor
    augment: Augment
    metric: str = "accuracy"
    stamp: str = ""
    public: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.images, Tensor) and (problem := pixels.problem(self.images)):
            raise BadSource(f"The target of {self.name} {problem}.")
        if tuple(self.images.shape[1:]) != self.source.shape:
            shapes = f"{tuple(self.images.shape[1:])} and {self.source.shape}"
            remedy = "Convert them to one size and number of channels."
            raise BadSource(f"Target and source of {self.name} differ in shape: {shapes}.", remedy)
        classes = len(self.source.classes)
        if self.labels.is_floating_point():
            raise BadSource(f"The target's labels of {self.name} are {self.labels.dtype}.", "Use integers.")
        if self.labels.shape != (len(self.images),) or self.labels.min() < 0 or self.labels.max() >= classes:
            raise BadSource(f"The target of {self.name} needs one label from 0 to {classes - 1} for each image.")

    def order(self, seed: int, kind: str = "random") -> Tensor:
        """The order of the target in the stream. `kind` is random, by-class, dirichlet(α) or drift."""
        return stream_order(kind)(self.labels, seed)

    def stream(
        self,
        size: int,
        seed: int,
        *,
        kind: str = "random",
        start: int = 0,
        queries: int | None = None,
        memory: Memory | None = None,
    ) -> Iterator[tuple[Query, Tensor]]:
        """Queries of `size` with their labels, from number `start` up to number `queries`.

        Images on disk are decoded while the query before is processed.
        """
        chosen = self.order(seed, kind).split(size)[start:queries]
        queries_in_order = ((Query(self.images[indices], memory), self.labels[indices]) for indices in chosen)
        return queries_in_order if isinstance(self.images, Tensor) else prefetch(queries_in_order)

    def resized(self, size: int) -> "Benchmark":
        """The same benchmark with images of `size` × `size` pixels."""
        assert isinstance(self.images, Tensor)
        assert isinstance(self.source.images, Tensor)
        source = Source(resize(self.source.images, size), self.source.labels, self.source.classes)
        return replace(self, source=source, images=resize(self.images, size))


def resize(images: Tensor, size: int) -> Tensor:
    """Resize images to a square, keeping their type."""
    if images.shape[-2:] == (size, size):
        return images

    def resized(batch: Tensor) -> Tensor:
        larger = F.interpolate(batch.float(), size=(size, size), mode="bilinear", align_corners=False, antialias=True)
        if batch.is_floating_point():
            return larger.clamp_(0, 1).to(batch.dtype)
        return larger.round_().clamp_(0, 255).to(torch.uint8)

    return torch.cat([resized(batch) for batch in images.split(1024)])
