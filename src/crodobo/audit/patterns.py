"""What an image could leave behind in a file: its encoded bytes, and its pixels as a model meets them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crodobo.config import Fit
from crodobo.data.decode import decode
from crodobo.data.listing import images_under
from crodobo.errors import BadData, BadImage

PIECE = 32  # values in a row that make a trace: bytes, or numbers
DISTINCT = 8  # so many of them have to differ, or plain areas would be found everywhere
HEADER = 800  # bytes at the start of other formats that may be a palette or tags
SCALINGS = (((0.5,), (0.5,)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # the small network's, and ImageNet's
MOST = 32  # pieces of an image in one form, spread over it


@dataclass(frozen=True)
class Trace:
    """A piece of an image in one of its forms."""

    content: bytes
    image: str
    form: str


@dataclass(frozen=True)
class Form:
    """How pixels are brought to a model's shape."""

    size: int
    grey: bool
    fit: Fit

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (1 if self.grey else 3, self.size, self.size)


def images_of(paths: Iterable[Path]) -> list[Path]:
    """The image files that are named, those of folders too."""
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise BadData(f"there is no {path} to look for; check --pattern")
        found += images_under(path) if path.is_dir() else [path]
    if not found:
        raise BadData("there is no image to look for; name image files, or a folder of them, with --pattern")
    return found


def traces_of(path: Path, forms: Iterable[Form], *, normalised: bool = False) -> Iterator[Trace]:
    """Pieces of an image in all its forms; what is the same in two of them comes once.

    With `normalised` also as networks take them, shifted and scaled.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadData(f"{path} cannot be read ({error.strerror}); check --pattern") from None
    seen: set[bytes] = set()
    for form, values in _forms_of(path, content, forms, normalised):
        for piece in pieces(values):
            if piece not in seen:
                seen.add(piece)
                yield Trace(piece, str(path), form)


def _forms_of(path: Path, content: bytes, forms: Iterable[Form], normalised: bool) -> Iterator[tuple[str, np.ndarray]]:
    yield "encoded bytes", np.frombuffer(content, np.uint8)[payload_start(content) :]
    for form in forms:
        try:
            pixels = decode(content, form.shape, form.fit)
        except BadImage as error:
            raise BadData(f"{path} cannot be looked for: {error}; leave it out of --pattern") from None
        orders = {"grey": pixels} if form.grey else {"CHW": pixels, "HWC": pixels.transpose(1, 2, 0)}
        for order, values in orders.items():
            flat = np.ascontiguousarray(values).reshape(-1)
            yield f"pixels at {form.size}×{form.size}, {order}, bytes", flat
            yield f"pixels at {form.size}×{form.size}, {order}, floats", flat.astype(np.float32) / np.float32(255)
            for mean, std in SCALINGS if normalised else ():
                unit = values.astype(np.float32) / np.float32(255)
                shape = (-1, 1, 1) if order in ("grey", "CHW") else (1, 1, -1)
                shift, scale = (np.array(given, np.float32).reshape(shape) for given in (mean, std))
                scaled = (unit - shift) / scale
                for channel in scaled if form.grey else (scaled,):
                    yield f"pixels at {form.size}×{form.size}, {order}, normalised floats", channel.reshape(-1)


def pieces(values: np.ndarray) -> list[bytes]:
    """Stretches of the values that are not plain, spread over them.

    >>> len(pieces(np.arange(70, dtype=np.uint8))), len(pieces(np.zeros(70, dtype=np.uint8)))
    (2, 0)
    """
    rows = values[: len(values) // PIECE * PIECE].reshape(-1, PIECE)
    distinct = 1 + np.count_nonzero(np.diff(np.sort(rows, axis=1), axis=1), axis=1)
    rows = rows[distinct >= DISTINCT]
    spread = np.linspace(0, len(rows) - 1, min(MOST, len(rows))).round().astype(int)
    return [rows[number].tobytes() for number in spread]


def payload_start(content: bytes) -> int:
    """Where the part of an image file begins that is its own: what comes before is alike in many files.

    >>> payload_start(b"\\x89PNG header IDAT picture")
    16
    >>> payload_start(b"\\xff\\xd8\\xff\\xc4\\x00\\x04..\\xff\\xda picture")
    10
    """
    if content.startswith(b"\x89PNG"):
        return content.find(b"IDAT") + 4
    if content.startswith(b"BM"):
        return int.from_bytes(content[10:14], "little")
    if not content.startswith(b"\xff\xd8"):
        return min(HEADER, len(content) // 2)
    place = 2
    while content[place : place + 1] == b"\xff" and content[place + 1 : place + 2] != b"\xda":  # a JPEG's segments
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
    return place + 2
