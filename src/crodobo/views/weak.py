"""The random crop of the weak view."""

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def random_crop(images: Tensor, margin: int, resize: bool, generator: Generator) -> Tensor:
    """Enlarge the images by `margin` on every side and cut a window of the old size at a random place."""
    count, _, height, width = images.shape
    if resize:
        size = (height + 2 * margin, width + 2 * margin)
        larger = F.interpolate(images, size=size, mode="bilinear", align_corners=False)
    else:
        larger = F.pad(images, (margin, margin, margin, margin))
    top, left = torch.randint(2 * margin + 1, (2, count, 1), generator=generator)
    rows, columns = top + torch.arange(height), left + torch.arange(width)
    sample = torch.arange(count)[:, None, None]
    cut = larger.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]]
    return cut.permute(0, 3, 1, 2)
