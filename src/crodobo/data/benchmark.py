"""Benchmark: a labelled source and a target whose labels only the protocol sees."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.core import pixels
from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data.order import stream_order
from crodobo.data.prefetch import ahead
from crodobo.errors import BadSource
from crodobo.views.augment import Augment


@dataclass(frozen=True)
class Benchmark:
    """Source, target and how views of their images are made.

    Parameters
    ----------
    name, description
        For reports.
    source
        The labelled public data.
    images, labels
        The target; it arrives as a stream, and its labels are for scoring alone.
    augment
        Weak and strong views that suit the images.
    metric
        What its accuracy is by custom: over all samples, or `class-average`, the mean of the classes' accuracies.
    stamp
        Changes when data on disk does; empty for data that does not.
    public
        Whether reports may show samples of the target.
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
            raise BadSource(f"the target of {self.name} {problem}")
        if tuple(self.images.shape[1:]) != self.source.shape:
            raise BadSource(
                f"target and source of {self.name} differ in shape: {tuple(self.images.shape[1:])} "
                f"and {self.source.shape}; bring them to one size and number of channels"
            )
        classes = len(self.source.classes)
        if self.labels.is_floating_point():
            raise BadSource(
                f"the target's labels of {self.name} are {self.labels.dtype}; labels are whole class numbers"
            )
        if self.labels.shape != (len(self.images),) or self.labels.min() < 0 or self.labels.max() >= classes:
            raise BadSource(f"the target of {self.name} needs one label in 0 to {classes - 1} for each image")

    def order(self, seed: int, kind: str = "random") -> Tensor:
        """The order in which the target streams by: random, by-class, dirichlet(α) or drift."""
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
        """Queries of `size` with their labels in that order, from query `start` up to `queries` in all.

        Images that are decoded as they are read are decoded while the query before is at work.
        """
        chosen = self.order(seed, kind).split(size)[start:queries]
        queries_in_order = ((Query(self.images[indices], memory), self.labels[indices]) for indices in chosen)
        return queries_in_order if isinstance(self.images, Tensor) else ahead(queries_in_order)

    def resized(self, size: int) -> "Benchmark":
        """The same benchmark with images of `size` × `size` pixels."""
        assert isinstance(self.images, Tensor)
        assert isinstance(self.source.images, Tensor)
        source = Source(resize(self.source.images, size), self.source.labels, self.source.classes)
        return replace(self, source=source, images=resize(self.images, size))


def resize(images: Tensor, size: int) -> Tensor:
    """Square images of another size, of the same type."""
    if images.shape[-2:] == (size, size):
        return images

    def resized(batch: Tensor) -> Tensor:
        larger = F.interpolate(batch.float(), size=(size, size), mode="bilinear", align_corners=False, antialias=True)
        if batch.is_floating_point():
            return larger.clamp_(0, 1).to(batch.dtype)
        return larger.round_().clamp_(0, 255).to(torch.uint8)

    return torch.cat([resized(batch) for batch in images.split(1024)])
