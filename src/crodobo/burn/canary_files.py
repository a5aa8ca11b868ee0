"""Canaries as image files: one for every format and mode that is decoded, and the pixels that decoding makes of them.

Each file takes another way through the decoder, and each way could leave pixels behind. Lossy formats change the
values, so the needles are taken from the decoded picture.
"""

import contextlib
import hashlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from crodobo.burn.canary import Canary, Needle
from crodobo.burn.unusual_files import unusual_files
from crodobo.data.decode import eight_bits, open_image
from crodobo.data.formats import REFUSED

PIXELS = 16  # in a needle
BITS = 64  # in a needle of a picture in black and white: 16 of its pixels are found everywhere
SIZES = ((80, 12), (176, 136))  # width × height: numpy caches arrays of less than 1,024 bytes, for example
DARKEST = 16  # the smallest value of a canary
OPAQUE, TRANSLUCENT = 255, 200
UPSIDE_DOWN = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0\0\0\0\0"  # orientation 3
GREY, COLOUR = ("1", "L", "LA", "P"), ("RGB", "RGBA")
KINDS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("PNG", (*GREY, *COLOUR, "I;16"), {}),
    ("PNG", ("P",), {"transparency": 0}),
    ("PNG", COLOUR, {"exif": UPSIDE_DOWN}),
    ("GIF", ("1", "L", "P"), {}),
    ("BMP", ("1", "L", "P", *COLOUR), {}),
    ("TIFF", (*GREY, *COLOUR, "CMYK", "YCbCr", "LAB", "I;16", "I;16B", "I", "F"), {}),
    ("TIFF", ("L", "RGB", "I;16", "F"), {"compression": "tiff_lzw"}),
    ("TIFF", ("L", "RGB", "I", "F"), {"compression": "tiff_adobe_deflate"}),
    ("TIFF", ("L", "RGB"), {"compression": "packbits"}),
    ("TIFF", ("L", "RGB", "CMYK", "YCbCr"), {"compression": "jpeg"}),
    ("TIFF", ("1",), {"compression": "group4"}),
    ("WEBP", COLOUR, {"lossless": True}),
    ("WEBP", COLOUR, {}),
    ("PPM", ("1", "L", "RGB", "RGBA", "I", "F"), {}),
    ("JPEG", ("L", "RGB", "CMYK"), {}),
    ("JPEG", ("L", "RGB"), {"progressive": True, "subsampling": 0, "quality": 95}),
    ("JPEG2000", ("L", "LA", *COLOUR, "I;16"), {}),
    ("JPEG2000", ("L", "RGB"), {"irreversible": True}),
    ("AVIF", ("L", *COLOUR), {"speed": 10}),
    ("HEIF", ("L", *COLOUR), {}),
)


def canary_files(canary: Canary) -> list[bytes]:
    """The canary in every format and mode, small and large. Formats that this Pillow lacks are left out."""
    saved = [
        _saved(_picture(canary, mode, size), kind, options)
        for size in SIZES
        for kind, modes, options in KINDS
        if kind not in REFUSED
        for mode in modes
    ]
    return [content for content in saved if content] + [
        file for width, height in SIZES for file in unusual_files(canary.row(width), height)
    ]


def decoded_needles(files: list[bytes], shape: tuple[int, int, int]) -> list[Needle]:
    """What each file becomes on its way to pixels of a shape, as Pillow, numpy and torch hold it."""
    forms: dict[bytes, str] = {}
    for content in files:
        with open_image(content, shape) as image:
            for step in _steps(image):
                for piece in _pieces(step):
                    forms.setdefault(piece, f"a decoded picture of mode {step.mode}")
    return [Needle(content, form) for content, form in forms.items()]


def _picture(canary: Canary, mode: str, size: tuple[int, int]) -> Image.Image:
    """The canary as a picture of this mode. Its values are scaled so that all modes show the same grey."""
    width, height = size
    row = np.frombuffer(canary.row(width), np.uint8)
    if mode == "1":
        drawn = np.frombuffer(hashlib.shake_256(f"bits {canary.seed}".encode()).digest(width), np.uint8)
        return Image.fromarray(np.tile(drawn > 127, (height, 1)))
    if mode in ("I;16", "I;16B", "I"):
        wide = np.dtype({"I;16": "<u2", "I;16B": ">u2", "I": "<i4"}[mode])
        return Image.fromarray((np.tile(row, (height, 1)).astype(np.int32) * 257).astype(wide))
    if mode == "F":
        return Image.fromarray(np.tile(row / np.float32(255), (height, 1)))
    picture = Image.fromarray(np.tile(row, (height, 1)))
    if mode == "P":
        picture.putpalette([value for value in range(256) for _ in range(3)])
    elif mode in ("LA", "RGBA"):
        picture = picture.convert(mode)
        picture.putalpha(TRANSLUCENT)
    elif mode in ("YCbCr", "LAB"):
        middle = Image.new("L", size, 128)
        picture = Image.merge(mode, (picture, middle, middle))
    else:
        picture = picture.convert(mode)
    return picture


def _saved(picture: Image.Image, kind: str, options: dict[str, Any]) -> bytes | None:
    file = io.BytesIO()
    with contextlib.suppress(KeyError, OSError):  # this Pillow was built without the format
        picture.save(file, kind, **options)
        return file.getvalue()
    return None


def _steps(image: Image.Image) -> Iterator[Image.Image]:
    """The pictures that decoding makes, one of another."""
    yield image
    flat = eight_bits(image)
    yield flat
    yield flat.convert("L")
    yield flat.convert("RGB")


def _pieces(image: Image.Image) -> Iterator[bytes]:
    """Some adjacent values in the middle of a picture, in the forms that they have in memory."""
    values = np.asarray(image)[image.height // 2]
    black_and_white = values.dtype == bool or not set(values.flat) - {0, 255}
    start, length = (8, BITS) if black_and_white else (image.width // 2, PIXELS)
    values = values[start : start + length]
    if (values == values[0]).all() or (image.mode == "P" and values.max() < DARKEST):
        return  # scaled down to one value, or numbered anew: such bytes are everywhere
    if values.dtype == bool:
        yield np.packbits(values).tobytes()
        values = values * np.uint8(255)
    yield values.tobytes()
    if values.dtype != np.uint8:
        yield values.astype(np.float64).tobytes()
    elif values.ndim > 1:
        yield _as_pillow_holds(values, image.mode)


def _as_pillow_holds(values: np.ndarray, mode: str) -> bytes:
    """Pixels of several channels take four bytes each in Pillow."""
    held = np.full((len(values), 4), OPAQUE, np.uint8)
    held[:, : values.shape[1]] = values
    if mode == "LA":
        held = values[:, (0, 0, 0, 1)]
    return held.tobytes()
