"""DICOM, the format of hospitals: the first frame as a picture, and nothing else of the file.

A DICOM file names the patient, the hospital and the day. Only the elements that describe the pixels are parsed, and
they are dropped with the pixels. Arrays are overwritten, because numpy caches small freed arrays with their content.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from crodobo.data.memory_file import open_memory
from crodobo.errors import BadImage

if TYPE_CHECKING:
    from pydicom.dataset import Dataset

DEFLATED = b"1.2.840.10008.1.2.1.99"  # a whole file in one compressed stream, which can be a decompression bomb
CACHED = 1024  # bytes: numpy caches freed arrays that are smaller
CACHE = 7  # arrays of each size
SAMPLES = ("Rows", "Columns", "SamplesPerPixel", "PlanarConfiguration", "NumberOfFrames", "PhotometricInterpretation")
BITS = ("BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation", "PixelData", "PixelPaddingValue")
VALUES = ("RescaleSlope", "RescaleIntercept", "WindowCenter", "WindowWidth", "VOILUTFunction")
FRAMES = ("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence")
COLOURS = ("Red", "Green", "Blue")
PALETTES = [f"{colour}PaletteColorLookupTable{part}" for colour in COLOURS for part in ("Data", "Descriptor")]
PARSED = [*SAMPLES, *BITS, *VALUES, *FRAMES, *PALETTES]


def dicom_pixels(content: bytes | memoryview) -> int:
    """How many pixels the first frame of a DICOM file has by its header."""
    from pydicom import dcmread

    header = dcmread(open_memory(content), stop_before_pixels=True, specific_tags=["Rows", "Columns"])
    return int(header.Rows) * int(header.Columns)


@contextmanager
def opened_dicom(content: bytes | memoryview, most_pixels: int) -> Iterator[Image.Image]:
    """The first frame of a DICOM file as a picture, grey or RGB. Its memory is overwritten when the block ends.

    Grey values are rescaled and then windowed by the file's first window; without a window they are stretched to the
    range that they have. MONOCHROME1, in which low values are bright, is inverted. Raises `BadImage` with a reason
    that quotes nothing of the file.
    """
    held: list[np.ndarray] = []
    try:
        yield Image.fromarray(_pixels(content, most_pixels, held))
    except (BadImage, MemoryError, Image.DecompressionBombError):
        raise
    except Exception as error:  # its message could quote the patient's name
        raise BadImage(f"it is a damaged DICOM file ({type(error).__name__})") from None
    finally:
        for array in held:
            array[:] = 0
        overwrite_cache()


def _pixels(content: bytes | memoryview, most_pixels: int, held: list[np.ndarray]) -> np.ndarray:
    """The pixels, 8 bits, as rows × columns or rows × columns × 3. All arrays made on the way are added to `held`."""
    from pydicom.pixels.processing import apply_color_lut
    from pydicom.pixels.utils import pixel_array

    dataset = _read(content)
    if int(dataset.Rows) * int(dataset.Columns) > most_pixels:
        raise Image.DecompressionBombError
    values = _kept(pixel_array(dataset, index=0), held)
    kind = str(dataset.PhotometricInterpretation)
    if kind == "PALETTE COLOR":
        values = _kept(apply_color_lut(values, dataset), held)
    if values.ndim == 3:
        top = 255.0 if values.dtype == np.uint8 else float(np.iinfo(values.dtype).max)
        return _scaled(values, 0.0, top, held)
    described = _first_frame(dataset)
    grey = _kept(values.astype(np.float64), held)
    grey *= _first(described.get("RescaleSlope"), 1.0)
    grey += _first(described.get("RescaleIntercept"), 0.0)
    low, high = _window(described) or (float(grey.min()), float(grey.max()))
    pixels = _scaled(grey, low, high, held)
    return np.subtract(255, pixels, out=pixels) if kind == "MONOCHROME1" else pixels


def _read(content: bytes | memoryview) -> "Dataset":
    """The elements of a file that describe its pixels."""
    from pydicom import config, dcmread
    from pydicom.pixels.decoders.base import get_decoder

    config.settings.reading_validation_mode = config.IGNORE  # its warnings would quote the file
    logging.getLogger("pydicom").disabled = True  # so would its log
    if re.search(re.escape(DEFLATED), content):
        raise BadImage("it is a deflated DICOM file, which could be a decompression bomb")
    dataset = dcmread(open_memory(content), specific_tags=PARSED)
    if "PixelData" not in dataset:
        raise BadImage("it is a DICOM file without an image")
    syntax = dataset.file_meta.TransferSyntaxUID
    if syntax.is_compressed and not get_decoder(syntax).is_available:
        raise BadImage(f"it is a DICOM file in {syntax.name}, for which pydicom needs another package")
    return dataset


def _kept(array: np.ndarray, held: list[np.ndarray]) -> np.ndarray:
    """An array that can be overwritten, and will be."""
    if not array.flags.writeable:
        array = array.copy()
    held.append(array)
    return array


def _scaled(values: np.ndarray, low: float, high: float, held: list[np.ndarray]) -> np.ndarray:
    """Values between two bounds as 0..255; those outside are cut off."""
    floats = _kept(values.astype(np.float64), held)
    floats -= low
    floats *= 255 / ((high - low) or 1.0)
    np.clip(np.round(floats, out=floats), 0, 255, out=floats)
    return _kept(floats.astype(np.uint8), held)


def _window(described: dict[str, Any]) -> tuple[float, float] | None:
    """The values that are black and white, by the first window of the file."""
    centre, width = described.get("WindowCenter"), described.get("WindowWidth")
    if centre is None or width is None or _first(width, 0.0) <= 0:
        return None
    middle, extent = _first(centre, 0.0), _first(width, 0.0)
    if str(described.get("VOILUTFunction") or "LINEAR") == "LINEAR":  # as the standard defines it (PS3.3 C.11.2.1.2)
        middle, extent = middle - 0.5, max(extent - 1, 1.0)
    return middle - extent / 2, middle + extent / 2


def _first_frame(dataset: "Dataset") -> dict[str, Any]:
    """What is said of the values of the first frame: by the file, by all frames, or by the frame itself."""
    found = {name: dataset.get(name) for name in VALUES if name in dataset}
    for name in FRAMES:
        for group in list(dataset.get(name) or [])[:1]:
            for part in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
                for item in list(group.get(part) or [])[:1]:
                    found |= {value: item.get(value) for value in VALUES if value in item}
    return found


def _first(value: Any, default: float) -> float:
    """The first of one or several numbers."""
    if value is None or value == "":
        return default
    return float(value[0] if hasattr(value, "__getitem__") and not isinstance(value, str) else value)


def overwrite_cache() -> None:
    """Overwrite the small arrays that numpy has cached in this thread, also those that pydicom made."""
    for size in range(1, CACHED):
        for array in [np.empty(size, np.uint8) for _ in range(CACHE)]:
            array[:] = 0
