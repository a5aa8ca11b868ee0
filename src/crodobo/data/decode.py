"""One image file as pixels of one shape: whatever its mode, depth and orientation, and however hostile it is."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from crodobo.config import Fit
from crodobo.data.formats import FORMATS
from crodobo.errors import BadImage

ROWS = 64  # that are converted at a time
TWELVE_BITS = 4096  # a 16-bit picture without a larger value comes from a 12-bit sensor, as in radiology

MOST_PIXELS = 89_478_485  # from here on Pillow warns of a decompression bomb; it refuses twice that

warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")  # of damaged EXIF data, for one
Image.init()  # all formats, not only those that Pillow starts with


def decode(
    content: bytes, shape: tuple[int, int, int], fit: Fit = "squash", most_pixels: int = MOST_PIXELS
) -> np.ndarray:
    """The pixels of an image file, channels × height × width, uint8; raises `BadImage` with the reason.

    Turned upright by its EXIF orientation. Transparency shows white. 16-bit and floating point values are brought
    to 8 bits. Of an animation or a multi-page file the first picture is taken.

    >>> file = io.BytesIO()
    >>> Image.new("CMYK", (40, 30)).save(file, "JPEG")
    >>> decode(file.getvalue(), (3, 32, 32)).shape
    (3, 32, 32)
    >>> decode(b"no picture", (3, 32, 32))
    Traceback (most recent call last):
    ...
    crodobo.errors.BadImage: it is no image of a known kind
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
        raise BadImage("it is empty" if not content else "it is no image of a known kind") from None
    except MemoryError:
        raise BadImage("it does not fit into memory") from None
    except Exception as error:  # what a damaged file raises is anyone's guess
        raise BadImage(f"it is damaged ({str(error) or type(error).__name__})") from None


def upright(image: Image.Image) -> Image.Image:
    """The picture turned by its EXIF orientation; where that cannot be read, as it lies."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data, though the pixels are whole
        return image


def to_pixels(image: Image.Image, shape: tuple[int, int, int], fit: Fit = "squash") -> np.ndarray:
    """A picture of any mode as pixels of that shape."""
    channels, height, width = shape
    flat = eight_bits(image).convert("L" if channels == 1 else "RGB")
    if fit == "crop":
        fitted = ImageOps.fit(flat, (width, height), Image.Resampling.BILINEAR)
    elif fit == "pad":
        fitted = ImageOps.pad(flat, (width, height), Image.Resampling.BILINEAR)
    else:
        fitted = flat.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.array(fitted)  # a copy of its own, which can be overwritten
    if channels == 1:
        return pixels[None]
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    pixels[:] = 0  # numpy keeps small arrays back for the next one that asks
    return planes


def eight_bits(image: Image.Image) -> Image.Image:
    """The picture with eight bits a channel and nothing to see through."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_bytes(np.asarray(image), fractions=image.mode == "F"))
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return image


def _to_bytes(values: np.ndarray, fractions: bool = False) -> np.ndarray:
    """Numbers of any range as 0..255: of 8, 12 or 16 bits where they fit, fractions of 1, else stretched.

    >>> [_to_bytes(np.array([0, top])).tolist() for top in (255, 4095, 65535)]
    [[0, 255], [0, 255], [0, 255]]
    >>> _to_bytes(np.array([0, 0.5]), fractions=True).tolist()
    [0, 128]
    """
    if not np.isfinite(values).all():
        raise ValueError("it has pixels that are no numbers")
    low, high = float(values.min()), float(values.max())
    if low < 0 or high >= 2**16:
        bottom, top = low, (high - low) or 1.0
    elif fractions and high <= 1:
        bottom, top = 0.0, 1.0
    else:
        bottom, top = 0.0, 255.0 if high <= 255 else TWELVE_BITS - 1.0 if high < TWELVE_BITS else 2.0**16 - 1
    found = np.empty(values.shape, np.uint8)
    for place in range(0, len(values), ROWS):  # a large picture in numbers of eight bytes would be a very large one
        rows = values[place : place + ROWS].astype(np.float64)
        rows -= bottom
        rows *= 255 / top
        found[place : place + ROWS] = np.round(rows, out=rows)
        rows[:] = 0  # numpy keeps small arrays back for the next one that asks
    return found
