"""Pillow with all formats that are installed. Decoders use no threads of their own, whose stacks would keep pixels."""

from importlib.util import find_spec

from PIL import Image

from crodobo.data.formats import FORMATS


def known_formats() -> tuple[str, ...]:
    """Load all of Pillow's decoders, and HEIF if its package is installed. Returns the formats that can be read."""
    Image.init()  # all formats, not only the ones that Pillow loads first
    if "AVIF" in Image.OPEN:
        from PIL import AvifImagePlugin

        AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    if find_spec("pillow_heif"):
        import pillow_heif

        pillow_heif.options.DECODE_THREADS = 1
        pillow_heif.register_heif_opener(thumbnails=False)
    return tuple(name for name in FORMATS if name in Image.OPEN)
