"""Streams: data that arrives as queries."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from crodobo import pixels
from crodobo.query import Query


def from_arrays(images: Tensor | np.ndarray, size: int = 64) -> Iterator[Query]:
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
        yield Query(batch.clone())
