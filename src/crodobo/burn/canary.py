"""Images that are easy to find again: what is left of them in memory shows what would be left of private ones.

All rows are one pattern of four values, forwards and backwards, over and over. So any stretch of eleven values holds
one of two needles of eight, also where an image was mirrored, moved or cut. The pattern comes from a seed, and whoever
makes the images does not have to keep it: a search is made by another process, which knows the seed.
"""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Needle:
    """Bytes to look for, and the form in which values lie there."""

    content: bytes
    form: str


@dataclass(frozen=True)
class Canary:
    """An image to look for.

    >>> Canary("0").values == Canary("0").values != Canary("1").values
    True
    >>> Canary("0").encoded((1, 8, 8)).startswith(b"P5 8 8 255")
    True
    """

    seed: str

    @property
    def values(self) -> bytes:
        """Four values between 16 and 239, no two alike."""
        drawn = hashlib.shake_256(f"canary {self.seed}".encode()).digest(64)
        return bytes(dict.fromkeys(16 + value % 224 for value in drawn))[:4]

    def row(self, width: int) -> bytes:
        """A row of so many pixels of one channel."""
        return ((self.values + self.values[::-1]) * (width // 8 + 1))[:width]

    def encoded(self, shape: tuple[int, int, int]) -> bytes:
        """An image file (PGM or PPM), whose pixels are not compressed."""
        channels, height, width = shape
        pixels = bytes(value for value in self.row(width) for _ in range(channels))
        return b"P%d %d %d 255\n" % (5 if channels == 1 else 6, width, height) + pixels * height

    def needles(self, channels: int, mean: list[float], std: list[float]) -> list[Needle]:
        """The pattern in all forms that it passes through: bytes, floats in 0..1, floats as a network takes them."""
        found: dict[bytes, str] = {}
        for first in (self.values, self.values[::-1]):
            period = np.frombuffer(first + first[::-1], np.uint8)
            plane = np.repeat(period[:, None], channels, axis=1)  # pixels × channels
            for form, values in _forms(plane, np.array(mean, np.float32), np.array(std, np.float32)):
                found.setdefault(values.tobytes(), f"{form}, channels last" if channels > 1 else form)
                for channel in values.T:
                    found.setdefault(np.ascontiguousarray(channel).tobytes(), form)
        return [Needle(content, form) for content, form in found.items()]


def _forms(plane: np.ndarray, mean: np.ndarray, std: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Values as bytes, in 0..1, and normalised; dividing and multiplying by the inverse may differ in the last bit."""
    divided, multiplied = plane / np.float32(255), plane * np.float32(1 / 255)
    forms = [("bytes", plane)]
    for unit in (divided, multiplied):
        forms += [("floats", unit), ("normalised floats", (unit - mean) / std)]
    return forms
