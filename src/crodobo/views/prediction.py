"""Prediction views: slightly changed images whose predictions are averaged."""

from collections.abc import Iterator

from torch import Tensor

from crodobo.views.augment import Augment, enlarge

CORNERS = ((0, 0), (1, 1), (0, 1), (1, 0))  # of the range in which a crop may move


def prediction_views(images: Tensor, count: int, augment: Augment) -> Iterator[Tensor]:
    """The images; from two views on their mirror images, if flips are allowed; from three on crops at fixed places.

    Nothing is random. There are fewer views than `count` if flips or crops are not allowed. All but the first are
    copies.

    >>> import torch
    >>> images = torch.arange(4.0).view(1, 1, 2, 2)
    >>> [view[0, 0, 0].tolist() for view in prediction_views(images, 2, Augment(margin=0, flip=True))]
    [[0.0, 1.0], [1.0, 0.0]]
    """
    yield images
    if augment.flip and count > 1:
        yield images.flip(-1)
    corners = CORNERS if augment.margin else ()
    height, width = images.shape[-2:]
    for number, (down, across) in enumerate(corners[: max(0, count - 2)]):
        larger = enlarge(images, augment.margin, augment.resize)
        top, left = 2 * augment.margin * down, 2 * augment.margin * across
        cut = larger[..., top : top + height, left : left + width]
        view = cut.flip(-1) if augment.flip and number % 2 else cut.clone()
        larger.zero_()  # private images
        yield view
