"""Decoding an image file to pixels of one shape, whatever its mode, depth and orientation. Files may be hostile."""

import io
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from crodobo.config import Fit
from crodobo.data.formats import FORMATS
from crodobo.errors import BadImage

Resize = Callable[..., Image.Image]
RESIZE: dict[str, Resize] = {"squash": Image.Image.resize, "crop": ImageOps.fit, "pad": ImageOps.pad}
ROWS = 64  # converted at a time
TWELVE_BITS = 4096  # a 16-bit picture with smaller values only is from a 12-bit sensor, as in radiology

MOST_PIXELS = 89_478_485  # above this, Pillow warns of a decompression bomb; it refuses twice as many

warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # about damaged EXIF data, for example
Image.init()  # all formats, not only the ones that Pillow loads first


def decode(
    content: bytes, shape: tuple[int, int, int], fit: Fit = "squash", most_pixels: int = MOST_PIXELS
) -> np.ndarray:
    """Decode an image file to channels × height × width, uint8. Raises `BadImage` with the reason.

    The image is turned upright by its EXIF orientation. Transparent parts become white. 16-bit and floating-point
    values are scaled to 8 bits. Only the first picture of an animation or a multi-page file is used.

    >>> decode(b"no picture", (3, 32, 32))
    Traceback (most recent call last):
    ...
    crodobo.errors.BadImage: it is not an image of a known format
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > most_pixels:  # also where warnings are silenced
                raise Image.DecompressionBombError
            image.draft(None, (2 * shape[2], 2 * shape[1]))  # a large JPEG is decoded at a fraction of its size
            image.load()
            return to_pixels(upright(image), shape, fit)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise BadImage(f"it has more than {most_pixels:,} pixels, a decompression bomb") from None
    except UnidentifiedImageError:
        raise BadImage("it is empty" if not content else "it is not an image of a known format") from None
    except MemoryError:
        raise BadImage("it does not fit into memory") from None
    except Exception as error:  # a damaged file can raise anything
        raise BadImage(f"it is damaged ({str(error) or type(error).__name__})") from None


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
    pixels = np.array(fitted)  # a copy, which can be overwritten
    if channels == 1:
        return pixels[None]
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    pixels[:] = 0  # numpy caches small freed arrays with their content
    return planes


def eight_bits(image: Image.Image) -> Image.Image:
    """Convert a picture to eight bits per channel, with transparent parts on white."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_bytes(np.asarray(image), fractions=image.mode == "F"))
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return image


def _to_bytes(values: np.ndarray, fractions: bool = False) -> np.ndarray:
    """Scale numbers to 0..255. Their range is 8, 12 or 16 bits, or 0..1 for fractions; any other is stretched."""
    if not np.isfinite(values).all():
        raise ValueError("it has pixels that are not numbers")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high >= 2**16:
        bottom, top = low, (high - low) or 1.0
    elif fractions and high <= 1:
        bottom, top = 0.0, 1.0
    else:
        bottom, top = 0.0, 255.0 if high <= 255 else TWELVE_BITS - 1.0 if high < TWELVE_BITS else 2.0**16 - 1
    found = np.empty(values.shape, np.uint8)
    for place in range(0, len(values), ROWS):  # float64 for all of a large picture would take too much memory
        rows = values[place : place + ROWS].astype(np.float64)
        rows -= bottom
        rows *= 255 / top
        found[place : place + ROWS] = np.round(rows, out=rows)
        rows[:] = 0  # as above
    return found
