"""Streams: data that arrives as queries."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.config import Fit
from crodobo.core import pixels
from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.data.images import DecodedOnRead
from crodobo.data.listing import images_under
from crodobo.data.pictures import Files
from crodobo.data.prefetch import ahead
from crodobo.errors import BadData


def from_arrays(images: Tensor | np.ndarray, size: int = 64, memory: Memory | None = None) -> Iterator[Query]:
    """Cut an array of images into queries of `size`; the last one may be shorter.

    Each query owns a copy, so burning it leaves the array as it is. Where the array itself is to be erased,
    make the queries from it directly: ``Query(images[:64])``.

    >>> import torch
    >>> for query in from_arrays(torch.zeros(5, 1, 8, 8), size=2):
    ...     with query:
    ...         len(query)
    2
    2
    1
    """
    for batch in pixels.as_tensor(images).split(size):
        yield Query(batch.clone(), memory)


def from_folder(
    path: str | Path,
    size: int = 64,
    *,
    image_size: int = 64,
    fit: Fit = "squash",
    grey: bool = False,
    memory: Memory | None = None,
) -> Iterator[tuple[Query, list[Path]]]:
    """Queries of the images under a folder, each with the paths of its images, in a random but repeatable order.

    Learners want queries of mixed classes, and files often lie there class by class.

    Images are decoded by this process, in memory alone, while the query before is at work. The files stay where they
    are; `crodobo adapt` deletes them, and withstands a crash.
    """
    folder = Path(path)
    files = list(images_under(folder))
    if not files:
        raise BadData(f"there is no image under {folder}")
    pictures = Files(folder, [str(file.relative_to(folder)) for file in files])
    images = DecodedOnRead(pictures, (1 if grey else 3, image_size, image_size), fit)
    chosen = torch.randperm(len(files), generator=Generator().manual_seed(0)).split(size)
    return ahead((Query(images[numbers], memory), [files[number] for number in numbers.tolist()]) for numbers in chosen)
