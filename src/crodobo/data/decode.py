"""Decoding an image file to pixels of one shape, whatever its mode, depth and orientation. Files may be hostile."""

import contextlib
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from crodobo.config import Fit
from crodobo.data.dicom import opened_dicom
from crodobo.data.formats import REFUSED, is_dicom, missing_package
from crodobo.data.memory_file import open_memory
from crodobo.data.plugins import known_formats
from crodobo.data.stack import overwrite_stack
from crodobo.errors import BadImage

Resize = Callable[..., Image.Image]
RESIZE: dict[str, Resize] = {"squash": Image.Image.resize, "crop": ImageOps.fit, "pad": ImageOps.pad}
ROWS = 64  # converted at a time
TWELVE_BITS = 4096  # a 16-bit picture with smaller values only is from a 12-bit sensor, as in radiology

MOST_PIXELS = 89_478_485  # above this, Pillow warns of a decompression bomb; it refuses twice as many

warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # about damaged EXIF data, for example
FORMATS = known_formats()


def decode(
    content: bytes | memoryview, shape: tuple[int, int, int], fit: Fit = "squash", most_pixels: int = MOST_PIXELS
) -> np.ndarray:
    """Decode an image file to channels × height × width, uint8. Raises `BadImage` with the reason.

    The image is turned upright by its EXIF orientation. Transparent parts become white. 16-bit and floating-point
    values are scaled to 8 bits. Only the first picture of an animation, a multi-page file or a DICOM file is used.

    >>> decode(b"no picture", (3, 32, 32))
    Traceback (most recent call last):
    ...
    crodobo.errors.BadImage: it is not an image of a known format
    """
    try:
        if missing := missing_package(content):
            raise BadImage(missing)
        with open_image(content, shape, most_pixels) as image:
            return to_pixels(image, shape, fit)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(f"it has more than {most_pixels:,} pixels, a decompression bomb") from None
    except UnidentifiedImageError:
        raise BadImage("it is empty" if not content else "it is not an image of a known format") from None
    except MemoryError:
        raise BadImage("it does not fit into memory") from None
    except Exception as error:  # a damaged file can raise anything
        raise BadImage(f"it is damaged ({str(error) or type(error).__name__})") from None
    finally:
        overwrite_stack()


@contextlib.contextmanager
def open_image(
    content: bytes | memoryview, shape: tuple[int, int, int], most_pixels: int = MOST_PIXELS
) -> Iterator[Image.Image]:
    """The picture of a file, upright, in its own mode, and large enough for a shape."""
    if is_dicom(content):
        with opened_dicom(content, most_pixels) as image:
            yield image
        return
    with Image.open(open_memory(content), formats=[name for name in FORMATS if name not in REFUSED]) as image:
        if image.width * image.height > most_pixels:  # also where warnings are silenced
            raise Image.DecompressionBombError
        image.draft(None, (2 * shape[2], 2 * shape[1]))  # a large JPEG is decoded at a fraction of its size
        image.load()
        yield upright(image)


def upright(image: Image.Image) -> Image.Image:
    """Turn a picture by its EXIF orientation, if that is readable."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # the EXIF data is damaged, but the pixels are not
        return image


def to_pixels(image: Image.Image, shape: tuple[int, int, int], fit: Fit = "squash") -> np.ndarray:
    """Convert a picture of any mode to pixels of a shape."""
    channels, height, width = shape
    flat = eight_bits(image).convert("L" if channels == 1 else "RGB")
    fitted = RESIZE[fit](flat, (width, height), Image.Resampling.BILINEAR)
    return _values(fitted, torch.uint8).permute(2, 0, 1).contiguous().numpy()


def eight_bits(image: Image.Image) -> Image.Image:
    """Convert a picture to eight bits per channel, with transparent parts on white."""
    if image.mode.startswith(("I", "F")):
        return _scaled(image)
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return image


def _scaled(image: Image.Image) -> Image.Image:
    """Scale numbers to 0..255. Their range is 8, 12 or 16 bits, or 0..1 for fractions; any other is stretched."""
    extremes = []
    for _, values in _strips(image):
        if not values.isfinite().all():
            raise ValueError("it has pixels that are not numbers")
        extremes += [float(values.min()), float(values.max())]
    low, high = min(extremes), max(extremes)
    if low < 0 or high >= 2**16:
        bottom, top = low, (high - low) or 1.0
    elif image.mode == "F" and high <= 1:
        bottom, top = 0.0, 1.0
    else:
        bottom, top = 0.0, 255.0 if high <= 255 else TWELVE_BITS - 1.0 if high < TWELVE_BITS else 2.0**16 - 1
    found = torch.empty((image.height, image.width), dtype=torch.uint8)
    for place, values in _strips(image):
        found[place : place + ROWS] = values.double().sub_(bottom).mul_(255 / top).round_()
    return Image.fromarray(found.numpy())


def _strips(image: Image.Image) -> Iterator[tuple[int, Tensor]]:
    """Numbers of some rows at a time, with the first row's: all of a large picture would take too much memory."""
    dtype = torch.float32 if image.mode == "F" else torch.int32
    for place in range(0, image.height, ROWS):
        rows = image.crop((0, place, image.width, min(place + ROWS, image.height)))
        yield place, _values(rows if image.mode in ("I", "F") else rows.convert("I"), dtype)[..., 0]


def _values(image: Image.Image, dtype: torch.dtype) -> Tensor:
    """The values of a picture, height × width × channels.

    Pixels are never in memory of numpy's own: it caches small arrays with their content when they are freed.
    """
    return torch.frombuffer(bytearray(image.tobytes()), dtype=dtype).reshape(image.height, image.width, -1)
