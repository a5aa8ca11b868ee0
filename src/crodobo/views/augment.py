"""Weak and strong views of a batch of images.

Weak is a random crop (and flip, where a mirrored object is still of its class). Strong is a weak view put
through RandAugment. Both work on whole batches: RandAugment gathers the images that drew the same operation
and applies it to all of them at once, which takes a quarter of the time of going image by image.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

import crodobo.core.torchvision_shim  # noqa: F401

from torchvision.transforms.v2 import functional as TF  # isort: skip

Photometric = Callable[[Tensor, float], Tensor]

# Each takes a batch and a signed strength in -1..1, the share of the operation's range.
PHOTOMETRIC: dict[str, Photometric] = {
    "autocontrast": lambda images, strength: TF.autocontrast(images),
    "equalize": lambda images, strength: TF.equalize(images),
    "posterize": lambda images, strength: TF.posterize(images, 8 - round(4 * abs(strength))),
    "solarize": lambda images, strength: TF.solarize(images, 1 - abs(strength)),
    "color": lambda images, strength: TF.adjust_saturation(images, 1 + 0.9 * strength),
    "contrast": lambda images, strength: TF.adjust_contrast(images, 1 + 0.9 * strength),
    "brightness": lambda images, strength: TF.adjust_brightness(images, 1 + 0.9 * strength),
    "sharpness": lambda images, strength: TF.adjust_sharpness(images, 1 + 0.9 * strength),
}
SIGNED = {"color", "contrast", "brightness", "sharpness"}
GEOMETRIC = ("rotate", "shear-x", "shear-y", "translate-x", "translate-y")
OPERATIONS = (*PHOTOMETRIC, *GEOMETRIC, "identity")


@dataclass(frozen=True)
class Augment:
    """How views are made.

    Parameters
    ----------
    margin
        Pixels by which a crop may move to each side. 0 leaves images where they are.
    resize
        How the room for the crop is made: enlarge the image (photographs, which fill their frame) or pad it
        with black (objects on a plain ground).
    flip
        Mirror half of the images. Not for digits, text or organs.
    operations
        RandAugment operations per image.
    strength
        Their strength, as a share of each operation's range (0.3 is the usual magnitude 9 of 30).

    Examples
    --------
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
        """A random crop of each image, mirrored half of the time where `flip` says so."""
        if self.margin:
            images = random_crop(images, self.margin, self.resize, generator)
        if self.flip:
            mirrored = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
            images = torch.where(mirrored, images.flip(-1), images)
        return images

    def strong(self, images: Tensor, generator: Generator) -> Tensor:
        """A weak view of each image, put through RandAugment."""
        images = self.weak(images, generator)
        for _ in range(self.operations):
            images = random_operation(images, self.strength, generator)
        return images


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


def random_operation(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """One RandAugment operation per image, drawn uniformly, with a random sign where it has one."""
    drawn = torch.randint(len(OPERATIONS), (len(images),), generator=generator)
    signs = torch.randint(2, (len(images),), generator=generator) * 2 - 1
    result = images.clone()
    for number, (name, operation) in enumerate(PHOTOMETRIC.items()):
        for sign in (1, -1) if name in SIGNED else (0,):
            chosen = drawn == number
            if sign:
                chosen &= signs == sign
            if (indices := chosen.nonzero().flatten()).numel():
                result[indices] = photometric(operation, images[indices], strength * (sign or 1))
    first = len(PHOTOMETRIC)
    indices = ((drawn >= first) & (drawn < first + len(GEOMETRIC))).nonzero().flatten()
    if indices.numel():
        result[indices] = warp(images[indices], drawn[indices] - first, signs[indices] * strength)
    return result


def photometric(operation: Photometric, images: Tensor, strength: float) -> Tensor:
    """Apply an operation on colours; other than one or three channels are taken one by one."""
    if images.shape[1] in (1, 3):
        return operation(images, strength)
    channels = images.flatten(0, 1)[:, None]
    return operation(channels, strength).reshape(images.shape)


def warp(images: Tensor, kinds: Tensor, strengths: Tensor) -> Tensor:
    """Rotate, shear or move each image by its own amount, all in one resampling.

    `kinds` are positions in `GEOMETRIC`; a strength of 1 is 30 degrees, a shear of 0.3 or a move by 45 %.
    """
    height, width = images.shape[-2:]
    aspect = height / width
    rotate, shear_x, shear_y, move_x, move_y = (kinds == kind for kind in range(len(GEOMETRIC)))
    angle = torch.deg2rad(30.0 * strengths) * rotate
    # affine_grid works in coordinates of -1..1 on both axes, so turns and shears carry the aspect ratio.
    across = [
        torch.cos(angle),
        (0.3 * strengths * shear_x - torch.sin(angle)) * aspect,
        0.9 * strengths * move_x,
    ]
    down = [
        (0.3 * strengths * shear_y + torch.sin(angle)) / aspect,
        torch.cos(angle),
        0.9 * strengths * move_y,
    ]
    theta = torch.stack([torch.stack(across, 1), torch.stack(down, 1)], 1)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False)
