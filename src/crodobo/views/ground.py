"""Ground: the background of an image that shows one object, such as a digit on black or a product on white."""

import torch
from torch import Tensor

CLEAR = 0.2  # share of an image's contrast from which a pixel certainly belongs to the object


def border(images: Tensor) -> Tensor:
    """The outermost pixels: images × channels × pixels."""
    edges = (images[..., 0, :], images[..., -1, :], images[..., 1:-1, 0], images[..., 1:-1, -1])
    return torch.cat(edges, dim=-1)


def ground_colour(images: Tensor) -> Tensor:
    """The usual colour of each image's border, as images × channels × 1 × 1."""
    return border(images).median(dim=-1).values[..., None, None]


def object_mask(images: Tensor) -> Tensor:
    """How far each pixel belongs to the object and not to the ground, from 0 to 1: images × 1 × height × width.

    >>> image = torch.zeros(1, 1, 5, 5)
    >>> image[..., 2, 2] = 0.4
    >>> object_mask(image).sum()
    tensor(1.)
    """
    apart = (images - ground_colour(images)).abs().amax(dim=1, keepdim=True)
    contrast = apart.amax(dim=(2, 3), keepdim=True).clamp(min=1e-3)
    return (apart / contrast / CLEAR).clamp(max=1.0)
