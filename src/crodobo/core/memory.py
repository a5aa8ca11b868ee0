"""Where the tensors of a query lie, and what becomes of them when it is burned."""

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Burned(NamedTuple):
    """How many bytes were overwritten, and why others could not be, if there are any."""

    wiped: int
    failed: RuntimeError | None = None


class Memory:
    """The process's heap: tensors stay where they are, and are overwritten when their query is burned.

    >>> images = torch.ones(2, 3)
    >>> Memory().burn([images]).wiped, int(images.sum())
    (24, 0)
    """

    def take(self, tensor: Tensor) -> Tensor:
        """Take a tensor over. What is returned is to be used in its place."""
        return tensor

    def burn(self, tensors: list[Tensor]) -> Burned:
        """Overwrite tensors that were taken, all that can be."""
        failed: RuntimeError | None = None
        wiped: set[tuple[int, int]] = set()  # places in memory: a tensor that was handed over twice counts once
        with torch.inference_mode():  # the one mode in which every kind of tensor can be overwritten
            for tensor in tensors:
                try:
                    tensor.zero_()
                    wiped.add((tensor.data_ptr(), extent(tensor)))
                except RuntimeError as error:
                    failed = error
        return Burned(sum(size for _, size in wiped), failed)


class Unburned(Memory):
    """The heap without any overwriting, to measure what that costs, and to see that traces are found where they are."""

    def burn(self, tensors: list[Tensor]) -> Burned:
        return Burned(0)


def extent(tensor: Tensor) -> int:
    """The bytes of a tensor in memory; what is repeated there only in name counts once.

    >>> extent(torch.zeros(3, 2)), extent(torch.zeros(1, 2).expand(3, 2))
    (24, 8)
    """
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return math.prod(min(size, 1) if step == 0 else size for size, step in steps) * tensor.element_size()
