"""Shifts: simple changes of domain of a given strength. They take images in 0..1 and a strength in 0..1."""

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

Shift = Callable[[Tensor, float, Generator], Tensor]
STRENGTHS = (0.25, 0.5, 1.0)


def darken(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Map intensities: dark tones become darker, bright ones stay."""
    return images ** (1 + 3 * strength)


def blur(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Average over a window, at full strength of a quarter of the image."""
    radius = max(1, round(strength * min(images.shape[-2:]) / 8))
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return F.avg_pool2d(padded, 2 * radius + 1, stride=1)


def add_noise(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Add Gaussian noise, and reduce the contrast to make room for it."""
    noise = torch.randn(images.shape, generator=generator)
    return ((1 - strength / 2) * images + strength / 4 + strength / 2 * noise).clamp(0, 1)


def occlude(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Put a grey square in a random place, at full strength with 3/4 of the image's height and width."""
    height, width = images.shape[-2:]
    tall, wide = round(0.75 * strength * height), round(0.75 * strength * width)
    top = torch.randint(height - tall + 1, (len(images), 1, 1, 1), generator=generator)
    left = torch.randint(width - wide + 1, (len(images), 1, 1, 1), generator=generator)
    rows, columns = torch.arange(height).view(1, 1, -1, 1), torch.arange(width).view(1, 1, 1, -1)
    covered = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    return images.masked_fill(covered, 0.5)


def overlay(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Let another image of the batch shine through, at full strength as bright as the image itself."""
    share = strength / 2
    return (1 - share) * images + share * images.roll(1, dims=0).flip(-1)


SHIFTS: dict[str, Shift] = {
    "darken": darken,
    "blur": blur,
    "noise": add_noise,
    "occlude": occlude,
    "overlay": overlay,
}


def shifts() -> Iterator[tuple[Shift, float]]:
    """Every shift with every strength.

    >>> len(list(shifts()))
    15
    """
    for shift in SHIFTS.values():
        for strength in STRENGTHS:
            yield shift, strength
