"""What an image can leave in a file or in memory: its encoded bytes, and its pixels as a model sees them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np

from crodobo.config import Fit
from crodobo.data.decode import decode
from crodobo.data.listing import images_under
from crodobo.errors import BadData, BadImage

PIECE = 32  # adjacent values in a pattern: bytes, or numbers
DISTINCT = 8  # different values in it; plain areas would be found everywhere
HEADER = 800  # bytes: a palette or tags at the start of formats that we do not parse
SCALINGS = (((0.5,), (0.5,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # of the small network, and of ImageNet
MOST = 32  # patterns of an image in one form, spread over it


@dataclass(frozen=True)
class Pattern:
    """A piece of an image in one of its forms."""

    content: bytes
    image: str
    form: str


@dataclass(frozen=True)
class Form:
    """The shape that pixels are resized to, and how."""

    size: int
    grey: bool
    fit: Fit


def make_forms(sizes: Iterable[int], fit: str | None) -> list[Form]:
    """Colour and grey forms of each size, with one way to make images square or with all."""
    fits = [each for each in get_args(Fit) if fit in (None, each)]
    return [Form(size, grey, each) for size in sorted(set(sizes)) for grey in (False, True) for each in fits]


def find_images(paths: Iterable[Path]) -> list[Path]:
    """The named image files, and those in the named folders."""
    images: list[Path] = []
    for path in paths:
        if not path.exists():
            raise _unusable(f"There is no file or folder {path} to search for.", "Check the path.")
        images += images_under(path) if path.is_dir() else [path]
    if not images:
        raise _unusable("There is no image to search for.", "Name image files, or a folder of them.")
    return images


def _unusable(problem: str, remedy: str) -> BadData:
    return BadData(problem, remedy, settings=("pattern",))


def patterns_of(path: Path, forms: Iterable[Form], *, normalised: bool = False) -> Iterator[Pattern]:
    """Pieces of an image in all its forms, without duplicates.

    With `normalised`, also as networks take them, shifted and scaled.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise _unusable(f"{path} is not readable ({error.strerror}).", "Check the path.") from None
    seen: set[bytes] = set()
    for form, values in _forms_of(path, content, forms, normalised):
        for piece in pieces(values):
            if piece not in seen:
                seen.add(piece)
                yield Pattern(piece, str(path), form)


def _forms_of(path: Path, content: bytes, forms: Iterable[Form], normalised: bool) -> Iterator[tuple[str, np.ndarray]]:
    yield "encoded bytes", np.frombuffer(content, np.uint8)[payload_start(content) :]
    for form in forms:
        try:
            pixels = decode(content, (1 if form.grey else 3, form.size, form.size), form.fit)
        except BadImage as error:
            raise _unusable(f"{path} cannot be searched for: {error.problem}.", "Leave it out.") from None
        orders = {"grey": pixels} if form.grey else {"CHW": pixels, "HWC": pixels.transpose(1, 2, 0)}
        for order, values in orders.items():
            name = f"pixels at {form.size}×{form.size}, {order}"
            unit = values.astype(np.float32) / np.float32(255)
            yield f"{name}, bytes", values.reshape(-1)
            yield f"{name}, floats", unit.reshape(-1)
            for mean, std in SCALINGS if normalised else ():
                shape = (1, 1, -1) if order == "HWC" else (-1, 1, 1)
                shift, scale = (np.array(given, np.float32).reshape(shape) for given in (mean, std))
                scaled = (unit - shift) / scale
                for channel in scaled if form.grey else (scaled,):
                    yield f"{name}, normalised floats", channel.reshape(-1)


def pieces(values: np.ndarray) -> list[bytes]:
    """Pieces of the values that are not plain, spread over them."""
    rows = values[: len(values) // PIECE * PIECE].reshape(-1, PIECE)
    distinct = 1 + np.count_nonzero(np.diff(np.sort(rows, axis=1), axis=1), axis=1)
    rows = rows[distinct >= DISTINCT]
    spread = np.linspace(0, len(rows) - 1, min(MOST, len(rows))).round().astype(int)
    return [rows[index].tobytes() for index in spread]


def payload_start(content: bytes) -> int:
    """Where the image data of a file begins. The bytes before it are the same in many files."""
    if content.startswith(b"\x89PNG"):
        return content.find(b"IDAT") + 4
    if content.startswith(b"BM"):
        return int.from_bytes(content[10:14], "little")
    if not content.startswith(b"\xff\xd8"):
        return min(HEADER, len(content) // 2)
    start = 2
    while content[start : start + 1] == b"\xff" and content[start + 1 : start + 2] != b"\xda":  # a JPEG's segments
        start += 2 + int.from_bytes(content[start + 2 : start + 4], "big")
    return start + 2
