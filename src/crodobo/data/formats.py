"""Known image formats and file suffixes, and formats that need a package which may be missing."""

from importlib.util import find_spec

from PIL import features

# Formats that Pillow decodes itself, and HEIF, which a plugin adds. Others call external programs, or are not for
# photographs.
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF", "HEIF")  # JPEG opens MPO too
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".dib"),
    *(".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm", ".mpo", ".jp2", ".j2k"),
    *(".heic", ".heif", ".avif", ".dcm"),
)
REFUSED: set[str] = set()  # formats whose decoders leave pixels in memory, where that matters
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
AVIF_BRANDS = (b"avif", b"avis")


def is_dicom(content: bytes | memoryview) -> bool:
    """Whether a file is DICOM, the format of hospitals."""
    return content[128:132] == b"DICM"


def missing_package(content: bytes | memoryview) -> str | None:
    """Why a file of a known format cannot be decoded here, as the second half of a sentence; None if it can.

    >>> missing_package(b"no picture")
    """
    brand = content[8:12] if content[4:8] == b"ftyp" else b""
    if is_dicom(content) and not find_spec("pydicom"):
        return 'it is a DICOM image, which needs pydicom: pip install "crodobo[dicom]"'
    if brand in HEIC_BRANDS and "HEIF" in REFUSED:
        return "it is a HEIC image, whose decoder leaves pixels in memory, so strict burning refuses it"
    if brand in HEIC_BRANDS and not find_spec("pillow_heif"):
        return 'it is a HEIC image, which needs pillow-heif: pip install "crodobo[heif]"'
    if brand in AVIF_BRANDS and not features.check("avif"):
        return "it is an AVIF image, which needs Pillow 11.3 or newer, built with AVIF"
    return None
