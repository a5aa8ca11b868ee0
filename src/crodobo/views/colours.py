"""The source view *colours*: intensities become a scale between two random colours."""

import torch
from torch import Generator, Tensor

SHARE = 0.5  # of the images


def colours(images: Tensor, generator: Generator) -> Tensor:
    """Map the intensities of half of the images to two random colours: x ← a + (b − a)·x in each channel.

    For drawings, digits and objects on a plain ground, if the target has colours.

    >>> images = torch.zeros(8, 3, 4, 4)
    >>> changed = colours(images, Generator().manual_seed(0))
    >>> bool((changed[:, :, :1, :1] == changed).all())  # an even image stays even
    True
    """
    count, channels = images.shape[:2]
    first, second = torch.rand(2, count, channels, 1, 1, generator=generator)
    chosen = torch.rand(count, 1, 1, 1, generator=generator) < SHARE
    grey = images.mean(dim=1, keepdim=True)
    return torch.where(chosen, torch.lerp(first, second, grey), images)
