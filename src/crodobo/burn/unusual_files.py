"""Image files that Pillow does not write: text, sixteen bits in colour, run lengths, and DICOM."""

import struct
import zlib
from importlib.util import find_spec

BLACK_TO_WHITE = bytes(value for grey in range(256) for value in (grey, grey, grey, 0))


def unusual_files(row: bytes, height: int) -> list[bytes]:
    """A grey picture whose rows are all the same, in each of these formats."""
    return [
        _text(row, height, channels=1),
        _text(row, height, channels=3),
        _wide_ppm(row, height),
        _wide_png(row, height, channels=3),
        _wide_png(row, height, channels=4),
        _run_lengths(row, height),
        *([_dicom(row, height, 8), _dicom(row, height, 16)] if find_spec("pydicom") else []),
    ]


def _wide(row: bytes, channels: int) -> bytes:
    """Each value as sixteen bits, once per channel."""
    return bytes(value for value in row for _ in range(2 * channels))


def _text(row: bytes, height: int, channels: int) -> bytes:
    line = " ".join(str(value) for value in row for _ in range(channels))
    return f"P{2 if channels == 1 else 3} {len(row)} {height} 255\n".encode() + f"{line}\n".encode() * height


def _wide_ppm(row: bytes, height: int) -> bytes:
    return b"P6 %d %d 65535\n" % (len(row), height) + _wide(row, 3) * height


def _wide_png(row: bytes, height: int, channels: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", len(row), height, 16, {3: 2, 4: 6}[channels], 0, 0, 0)
    pixels = zlib.compress((b"\0" + _wide(row, channels)) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _run_lengths(row: bytes, height: int) -> bytes:
    """A BMP in which each value is a run of one, and each row ends with two zeros."""
    pixels = (b"".join(bytes((1, value)) for value in row) + b"\0\0") * height + b"\0\1"
    start = 14 + 40 + len(BLACK_TO_WHITE)
    head = struct.pack("<IiiHHIIiiII", 40, len(row), height, 1, 8, 1, len(pixels), 2835, 2835, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + head + BLACK_TO_WHITE + pixels


def _dicom(row: bytes, height: int, bits: int) -> bytes:
    """A grey DICOM file, not compressed."""

    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += (b"\0" if kind in (b"UI", b"OW") else b" ") * (len(value) % 2)
        length = struct.pack("<HI", 0, len(value)) if kind == b"OW" else struct.pack("<H", len(value))
        return struct.pack("<HH", group, number) + kind + length + value

    def number(place: int, value: int) -> bytes:
        return element(0x28, place, b"US", struct.pack("<H", value))

    syntax = element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1")
    head = element(2, 0, b"UL", struct.pack("<I", len(syntax))) + syntax
    shape = number(2, 1) + element(0x28, 4, b"CS", b"MONOCHROME2") + number(0x10, height) + number(0x11, len(row))
    depth = number(0x100, bits) + number(0x101, bits) + number(0x102, bits - 1) + number(0x103, 0)
    pixels = (row if bits == 8 else _wide(row, 1)) * height
    return bytes(128) + b"DICM" + head + shape + depth + element(0x7FE0, 0x10, b"OW", pixels)
