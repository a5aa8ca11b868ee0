"""The source view *zoom*: objects of other sizes, proportions and places."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.views.ground import ground_colour, object_mask

SHARE = 0.7  # of the images
SMALLEST = 0.4  # longer side of the smallest object, as a share of the frame
STRETCH = 0.2  # how far width and height may differ


def zoom(images: Tensor, generator: Generator) -> Tensor:
    """Shrink 70 % of the images and place them anywhere in the frame. The rest of the frame gets the ground's colour.

    Objects that fill their frame shrink by more than those that are small already. For objects on a plain ground; a
    photograph, which has none, gets crops instead (`Augment.resize`).

    >>> images = torch.zeros(8, 1, 16, 16)
    >>> images[:, :, 4:12, 4:12] = 1
    >>> zoomed = zoom(images, Generator().manual_seed(0))
    >>> bool((zoomed.sum(dim=(1, 2, 3)) <= images.sum(dim=(1, 2, 3)) + 1e-3).all())
    True
    """
    count = len(images)
    size, stretch, across, down = torch.rand(4, count, generator=generator)
    chosen = torch.rand(count, generator=generator) < SHARE
    smallest = (SMALLEST / extent(images)).clamp(max=1)
    size = smallest + (1 - smallest) * size
    stretch = 1 + STRETCH * (2 * stretch - 1)
    wide, high = (size * stretch).clamp(max=1), (size / stretch).clamp(max=1)
    wide, high = torch.where(chosen, wide, 1.0), torch.where(chosen, high, 1.0)
    zero = torch.zeros(count)
    # affine_grid maps places in the new image to places in the old one, both in -1..1.
    left, top = (1 - wide) * (2 * across - 1), (1 - high) * (2 * down - 1)
    theta = torch.stack([1 / wide, zero, -left / wide, zero, 1 / high, -top / high], dim=1).view(count, 2, 3)
    ground = ground_colour(images)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    moved = F.grid_sample(images - ground, grid, align_corners=False) + ground
    return torch.where(chosen[:, None, None, None], moved, images).clamp(0, 1)


def extent(images: Tensor) -> Tensor:
    """The longer side of each object, as a share of the frame.

    >>> image = torch.zeros(1, 1, 8, 8)
    >>> image[..., 2:6, 3:5] = 1
    >>> extent(image)
    tensor([0.5000])
    """
    inside = object_mask(images)[:, 0] >= 0.5
    sides = []
    for dimension in (1, 2):
        occupied = inside.any(dim=dimension)
        places = torch.arange(occupied.shape[1])
        last = torch.where(occupied, places, -1).amax(dim=1)
        first = torch.where(occupied, places, occupied.shape[1]).amin(dim=1)
        sides.append((last - first + 1).clamp(min=1) / occupied.shape[1])
    return torch.maximum(*sides)
