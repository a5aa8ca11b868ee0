"""The source view *background*: objects on another ground."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.views.ground import object_mask

SHARE = 0.5  # of the images
COARSEST, FINEST = 2, 16  # grid points per side of a random texture


def background(images: Tensor, generator: Generator, query: Tensor | None = None) -> Tensor:
    """Put half of the objects on another ground: an image of the query, or a random texture if there is no query.

    For objects on a plain ground. Grounds from the query are derived from it, so the query has to own the result.

    >>> images = torch.zeros(8, 3, 16, 16)
    >>> images[:, :, 6:10, 6:10] = 1
    >>> changed = background(images, Generator().manual_seed(0))
    >>> bool((changed[:, :, 7:9, 7:9] == 1).all()), bool((changed == images).all())
    (True, False)
    """
    count = len(images)
    chosen = torch.rand(count, 1, 1, 1, generator=generator) < SHARE
    if query is None:
        ground = textures(images, generator)
    else:
        ground = query[torch.randint(len(query), (count,), generator=generator)]
    return torch.where(chosen, torch.lerp(ground, images, object_mask(images)), images)


def textures(images: Tensor, generator: Generator) -> Tensor:
    """Random textures of the images' shape, from smooth to fine, between two random colours."""
    count, channels, height, width = images.shape
    points = int(torch.randint(COARSEST, FINEST + 1, (1,), generator=generator))
    noise = torch.rand(count, 1, points, points, generator=generator)
    noise = F.interpolate(noise, size=(height, width), mode="bilinear", align_corners=True)
    first, second = torch.rand(2, count, channels, 1, 1, generator=generator)
    return torch.lerp(first, second, noise)
