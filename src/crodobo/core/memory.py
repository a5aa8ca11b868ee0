"""Memory: where the tensors of a query are stored, and how they are erased."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Burned(NamedTuple):
    """The number of overwritten bytes, and the error of a tensor that could not be overwritten."""

    wiped: int
    failed: RuntimeError | None = None


class Memory:
    """The heap: tensors stay where they are and are overwritten when their query is burned.

    >>> images = torch.ones(2, 3)
    >>> Memory().burn([images]).wiped, int(images.sum())
    (24, 0)
    """

    def reserve(self, size: int) -> None:
        """Make sure that this many bytes can be held. The heap always tries."""

    def take(self, tensor: Tensor) -> Tensor:
        """Take a tensor over. Use the returned tensor instead of it."""
        return tensor

    def burn(self, tensors: list[Tensor]) -> Burned:
        """Overwrite all these tensors, also if one of them fails."""
        failed: RuntimeError | None = None
        wiped: set[tuple[int, int]] = set()  # addresses and sizes: a tensor that was taken twice counts once
        with torch.inference_mode():  # the only mode in which every tensor can be overwritten
            for tensor in tensors:
                try:
                    tensor.zero_()
                    wiped.add((tensor.data_ptr(), extent(tensor)))
                except RuntimeError as error:
                    failed = error
        return Burned(sum(size for _, size in wiped), failed)


class Unburned(Memory):
    """The heap without overwriting, to measure its cost and to test that scans find traces."""

    def burn(self, tensors: list[Tensor]) -> Burned:
        return Burned(0)


def extent(tensor: Tensor) -> int:
    """The bytes of a tensor in memory. Expanded dimensions count once.

    >>> extent(torch.zeros(3, 2)), extent(torch.zeros(1, 2).expand(3, 2))
    (24, 8)
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(min(size, 1) if step == 0 else size for size, step in steps) * tensor.element_size()
