"""Canaries: test images that are easy to find in memory. Traces of them show what a private image would leave.

All rows repeat one pattern of four values, forwards and backwards. So any eleven adjacent values contain one of two
needles of eight values, even if the image was mirrored, shifted or cropped. The pattern comes from a seed. Another
process searches for it, so that the process under test need not keep the pattern itself.
"""

import hashlib
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Needle:
    """Bytes to search for, and the form of the values in them."""

    content: bytes
    form: str


@dataclass(frozen=True)
class Canary:
    """A test image."""

    seed: str

    @property
    def values(self) -> bytes:
        """Four different values between 16 and 239."""
        drawn = hashlib.shake_256(f"canary {self.seed}".encode()).digest(64)
        return bytes(dict.fromkeys(16 + value % 224 for value in drawn))[:4]

    def row(self, width: int) -> bytes:
        """One row of one channel."""
        return ((self.values + self.values[::-1]) * (width // 8 + 1))[:width]

    def encoded(self, shape: tuple[int, int, int]) -> bytes:
        """The image as an uncompressed file (PGM or PPM)."""
        channels, height, width = shape
        pixels = bytes(value for value in self.row(width) for _ in range(channels))
        return b"P%d %d %d 255\n" % (5 if channels == 1 else 6, width, height) + pixels * height

    def needles(self, channels: int, mean: list[float], std: list[float]) -> list[Needle]:
        """The pattern in every form that it passes through: bytes, floats in 0..1, normalised floats."""
        forms: dict[bytes, str] = {}
        for first in (self.values, self.values[::-1]):
            period = np.frombuffer(first + first[::-1], np.uint8)
            plane = np.repeat(period[:, None], channels, axis=1)  # pixels × channels
            for form, values in _forms(plane, np.array(mean, np.float32), np.array(std, np.float32)):
                forms.setdefault(values.tobytes(), f"{form}, channels last" if channels > 1 else form)
                for channel in values.T:
                    forms.setdefault(np.ascontiguousarray(channel).tobytes(), form)
        return [Needle(content, form) for content, form in forms.items()]


def _forms(plane: np.ndarray, mean: np.ndarray, std: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Values as bytes, in 0..1, and normalised. Dividing and multiplying by the inverse can differ in the last bit."""
    divided, multiplied = plane / np.float32(255), plane * np.float32(1 / 255)
    forms = [("bytes", plane)]
    for unit in (divided, multiplied):
        forms += [("floats", unit), ("normalised floats", (unit - mean) / std)]
    return forms
