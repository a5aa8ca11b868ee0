"""The source view *style*: the low frequencies of the query's images."""

import torch
from torch import Generator, Tensor

SHARE = 0.5  # of the images
LOW = 0.05  # frequencies that are taken over, as a share of the image's side


def style(images: Tensor, generator: Generator, query: Tensor | None = None) -> Tensor:
    """Give half of the images the low-frequency Fourier amplitudes of a random image of the query (FDA).

    The phases, which carry the shapes, stay. Without a query nothing changes. The result is derived from the query, so
    the query has to own it.

    Reference: Yang and Soatto, *FDA: Fourier Domain Adaptation for Semantic Segmentation*, CVPR 2020.

    >>> images, query = torch.rand(8, 1, 16, 16), torch.full((2, 1, 16, 16), 0.7)
    >>> styled = style(images, Generator().manual_seed(0), query)
    >>> changed = (styled != images).flatten(1).any(dim=1)
    >>> bool(((styled[changed].mean(dim=(1, 2, 3)) - 0.7).abs() < 0.1).all())  # the brightness is the query's
    True
    """
    if query is None:
        return images
    count, _, height, width = images.shape
    chosen = torch.rand(count, 1, 1, 1, generator=generator) < SHARE
    other = query[torch.randint(len(query), (count,), generator=generator)]
    spectrum = torch.fft.fft2(images)
    amplitude = torch.where(low_frequencies(height, width), torch.fft.fft2(other).abs(), spectrum.abs())
    styled: Tensor = torch.fft.ifft2(torch.polar(amplitude, spectrum.angle())).real
    return torch.where(chosen, styled.clamp(0, 1), images)


def low_frequencies(height: int, width: int) -> Tensor:
    """Which places of a spectrum hold low frequencies."""
    down, across = torch.fft.fftfreq(height).abs(), torch.fft.fftfreq(width).abs()
    low: Tensor = (down[:, None] < LOW) & (across < LOW)
    return low
