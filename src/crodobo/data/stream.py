"""Streams of queries from arrays and folders."""

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
from crodobo.data.prefetch import prefetch
from crodobo.errors import BadData


def from_arrays(images: Tensor | np.ndarray, size: int = 64, memory: Memory | None = None) -> Iterator[Query]:
    """Cut an array of images into queries of `size`. The last one may be shorter.

    Each query owns a copy, so burning it does not change the array. To erase the array itself, make queries from it
    directly: ``Query(images[:64])``.

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
    """Queries of the images in a folder, each with the paths of its images, in a random but repeatable order.

    Learners need queries of mixed classes, and files are often sorted by class. Images are decoded in memory while the
    query before is processed. The files are not deleted; `crodobo.inbox` deletes them, and survives a crash.
    """
    folder = Path(path)
    files = list(images_under(folder))
    if not files:
        raise BadData(f"There is no image in {folder}.", "Check the path.")
    pictures = Files(folder, [str(file.relative_to(folder)) for file in files])
    images = DecodedOnRead(pictures, (1 if grey else 3, image_size, image_size), fit)
    chosen = torch.randperm(len(files), generator=Generator().manual_seed(0)).split(size)
    return prefetch((Query(images[numbers], memory), [files[each] for each in numbers.tolist()]) for numbers in chosen)
