"""The image format of the package: batches of N×C×H×W, uint8 in 0..255 or floats in 0..1."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Images(Protocol):
    """Images by number: a tensor, or an object that reads them on demand."""

    @property
    def shape(self) -> Any: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __len__(self) -> int: ...

    def __getitem__(self, numbers: Tensor, /) -> Tensor: ...


def as_tensor(images: Tensor | np.ndarray) -> Tensor:
    """The same memory as a tensor. Nothing is copied, so there is only one copy to erase."""
    if not isinstance(images, Tensor | np.ndarray):
        raise TypeError(f"images must be a tensor or a numpy array, not {type(images).__name__}")
    return torch.from_numpy(images) if isinstance(images, np.ndarray) else images


def problem(images: Tensor, *, private: bool = False) -> str | None:
    """The problem with a batch of images as the second half of a sentence, or None.

    The sentence contains no value of private images.

    >>> problem(torch.zeros(2, 1, 8, 8)) is None
    True
    >>> problem(torch.full((2, 1, 8, 8), float("nan")))
    'has NaN or infinite pixels'
    """
    if images.ndim != 4:
        return f"has shape {tuple(images.shape)}; images must be samples × channels × height × width"
    if images.numel() == 0:
        return f"is empty (shape {tuple(images.shape)})"
    if images.shape[3] in (1, 3, 4) and images.shape[1] > 4:
        return f"has shape {tuple(images.shape)}, channels last; move them first with images.transpose(0, 3, 1, 2)"
    if images.dtype == torch.uint8:
        return None
    if not images.is_floating_point():
        return f"has pixels of type {images.dtype}; use uint8 (0 to 255) or floats (0 to 1)"
    low, high = (float(bound) for bound in torch.aminmax(images.detach()))
    if not (np.isfinite(low) and np.isfinite(high)):
        return "has NaN or infinite pixels"
    if low < 0 or high > 1:
        found = "outside 0 to 1" if private else f"from {low:.7g} to {high:.7g}"
        return f"has pixels {found}; floats must be in 0 to 1: divide them by 255, or clamp them"
    return None


def misfit(images: Tensor, shape: tuple[int, ...]) -> str | None:
    """Like `problem`, for private images and a model that expects images of `shape`."""
    if (wrong := problem(images, private=True)) or tuple(images.shape[1:]) == shape:
        return wrong
    given, expected = ("×".join(map(str, each)) for each in (images.shape[1:], shape))
    return f"has images of {given}, and the model expects {expected} (channels × height × width)"


def in_batches(images: Images, size: int, order: Tensor | None = None) -> Iterator[Tensor]:
    """All images, or those in `order`, in batches of `size`.

    >>> [len(batch) for batch in in_batches(torch.zeros(5, 1, 8, 8), size=2)]
    [2, 2, 1]
    """
    for numbers in (torch.arange(len(images)) if order is None else order).split(size):
        yield images[numbers]


def to_unit(images: Tensor) -> Tensor:
    """A new float copy in 0..1 with channels last in memory, which is faster for convolutions on a CPU.

    >>> to_unit(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8))
    tensor([[[[0.0000, 0.2000, 1.0000]]]])
    """
    unit = torch.empty(images.shape, memory_format=torch.channels_last)
    unit.copy_(images.detach())
    return unit.div_(255) if images.dtype == torch.uint8 else unit
