"""Augment: the settings of weak and strong views, and the two views."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from crodobo.views.strong import random_operation


@dataclass(frozen=True)
class Augment:
    """How views are made.

    Parameters
    ----------
    margin
        Pixels by which a crop may move to each side. 0 turns cropping off.
    resize
        How room for the crop is made: enlarge the image (photographs, which fill their frame) or pad it with black
        (objects on a plain background).
    flip
        Mirror half of the images. Not for digits, text or organs.
    operations
        RandAugment operations per image.
    strength
        Their strength, as a share of each operation's range (0.3 is the usual magnitude 9 of 30).

    Examples
    --------
    >>> import torch
    >>> augment = Augment(margin=2)
    >>> images = torch.rand(4, 1, 32, 32)
    >>> augment.weak(images, torch.Generator().manual_seed(0)).shape
    torch.Size([4, 1, 32, 32])
    """

    margin: int = 2
    resize: bool = False
    flip: bool = False
    operations: int = 2
    strength: float = 0.3

    def weak(self, images: Tensor, generator: Generator) -> Tensor:
        """Crop each image at random, and mirror it half of the time if `flip` is set."""
        if self.margin:
            images = random_crop(images, self.margin, self.resize, generator)
        if self.flip:
            mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
            images = torch.where(mirrored, images.flip(-1), images)
        return images

    def strong(self, images: Tensor, generator: Generator) -> Tensor:
        """Put the weak view of each image through RandAugment."""
        images = self.weak(images, generator)
        for _ in range(self.operations):
            images = random_operation(images, self.strength, generator)
        return images


def random_crop(images: Tensor, margin: int, resize: bool, generator: Generator) -> Tensor:
    """Enlarge the images by `margin` on every side and cut a window of the old size at a random place."""
    count, _, height, width = images.shape
    larger = enlarge(images, margin, resize)
    top, left = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    sample = torch.arange(count)[:, None, None]
    cut = larger.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2)


def enlarge(images: Tensor, margin: int, resize: bool) -> Tensor:
    """Make images larger by `margin` on every side: stretch them, or pad them with black."""
    if not resize:
        return F.pad(images, (margin, margin, margin, margin))
    height, width = images.shape[-2:]
    size = (height + 2 * margin, width + 2 * margin)
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)
