"""Every image file becomes pixels of one shape, or an error with the reason."""

import contextlib
import io
import struct
import time
import tracemalloc
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crodobo.data.decode import decode
from crodobo.errors import BadImage

ORIENTATION = 0x0112
SQUARE = (3, 16, 16)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(colour: int | tuple[int, ...], mode: str = "RGB", size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.new(mode, size, colour)


def quarters(width: int = 64, height: int = 48) -> np.ndarray:
    """Four fields of different colours, so that every rotation and mirror shows; height × width × 3."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (200, 40, 40)
    picture[: height // 2, width // 2 :] = (40, 200, 40)
    picture[height // 2 :, : width // 2] = (40, 40, 200)
    picture[height // 2 :, width // 2 :] = (220, 220, 220)
    return picture


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png_that_claims(width: int, height: int) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")


def test_pixels_of_the_right_size_are_unchanged() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    found = decode(encoded(Image.fromarray(picture)), SQUARE)
    assert found.dtype == np.uint8
    assert np.array_equal(found, picture.transpose(2, 0, 1))
    found[:] = 0  # it is a copy, which can be overwritten


@pytest.mark.parametrize(
    ("orientation", "turned_away"),
    [
        (1, lambda upright: upright),
        (2, lambda upright: upright[:, ::-1]),
        (3, lambda upright: upright[::-1, ::-1]),
        (4, lambda upright: upright[::-1]),
        (5, lambda upright: upright.transpose(1, 0, 2)),
        (6, lambda upright: np.rot90(upright)),
        (7, lambda upright: upright.transpose(1, 0, 2)[::-1, ::-1]),
        (8, lambda upright: np.rot90(upright, 3)),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_picture_is_turned_upright(kind: str, orientation: int, turned_away: Any) -> None:
    upright = quarters()
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    lying = Image.fromarray(np.ascontiguousarray(turned_away(upright)))
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    found = decode(encoded(lying, kind, exif=exif, **options), (3, 48, 64))
    assert np.abs(found.transpose(1, 2, 0).astype(int) - upright).max() <= (12 if kind == "JPEG" else 0)


@pytest.mark.parametrize(
    "exif", [b"garbage", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0II*\0\x08\0\0\0\x05\0\x12\x01\x03\0\x01\0\0\0\x06"]
)
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_is_ignored(kind: str, exif: bytes) -> None:
    assert np.abs(decode(encoded(plain((200, 100, 50)), kind, exif=exif), SQUARE)[0].astype(int) - 200).max() < 4


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(kind: str) -> None:
    values = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    found = decode(encoded(Image.fromarray(values), kind), (1, 16, 16))[0]
    assert np.array_equal(found, np.round(values / 65535 * 255).astype(np.uint8))
    assert (found.min(), found.max()) == (0, 255)


@pytest.mark.parametrize(("highest", "top"), [(255, 255), (256, 4095), (4095, 4095), (4096, 65535), (65535, 65535)])
def test_pictures_of_fewer_bits_in_sixteen_are_not_black(highest: int, top: int) -> None:
    values = np.zeros((16, 16), np.uint16)
    values[0, 0] = highest
    assert decode(encoded(Image.fromarray(values)), (1, 16, 16)).max() == round(255 * highest / top)


def test_sixteen_bits_in_colour_keep_their_high_bytes() -> None:
    samples = struct.pack(">3H", 0xFFFF, 0x8000, 0)
    assert decode(b"P6 1 1 65535\n" + samples, (3, 8, 8))[:, 0, 0].tolist() == [255, 128, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 0.25], [0.5, 1]], np.float32), [0, 64, 128, 255]),
        (np.array([[0, 51], [102, 255]], np.float32), [0, 51, 102, 255]),
        (np.array([[-55, -5], [45, 200]], np.float32), [0, 50, 100, 255]),
        (np.array([[0, 100000], [300000, 400000]], np.int32), [0, 64, 191, 255]),
        (np.full((2, 2), -7, np.int32), [0, 0, 0, 0]),
    ],
    ids=["fractions", "bytes", "negative", "large", "constant"],
)
def test_numbers_of_other_ranges_become_bytes(values: np.ndarray, expected: list[int]) -> None:
    found = decode(encoded(Image.fromarray(values), "TIFF"), (1, 2, 2))
    assert found.ravel().tolist() == expected


def test_pixels_that_are_not_numbers_are_refused() -> None:
    values = np.full((4, 4), np.nan, np.float32)
    with pytest.raises(BadImage, match="not numbers"):
        decode(encoded(Image.fromarray(values), "TIFF"), SQUARE)


def test_grey_and_colour_are_converted_into_each_other() -> None:
    grey, colour = encoded(plain(90, "L")), encoded(plain((255, 0, 0)))
    assert decode(grey, SQUARE).reshape(3, -1).tolist() == [[90] * 256] * 3
    assert set(decode(grey, (1, 16, 16)).ravel().tolist()) == {90}
    assert set(decode(colour, (1, 16, 16)).ravel().tolist()) == {round(0.299 * 255)}
    assert set(decode(encoded(plain(1, "1")), SQUARE).ravel().tolist()) == {255}


@pytest.mark.parametrize("alpha", [0, 51, 128, 255])
def test_transparent_parts_become_white(alpha: int) -> None:
    seen = [round((value * alpha + 255 * (255 - alpha)) / 255) for value in (200, 100, 0)]
    found = decode(encoded(plain((200, 100, 0, alpha), "RGBA")), SQUARE)[:, 0, 0].astype(int)
    assert np.abs(found - seen).max() <= 1
    grey = decode(encoded(plain((100, alpha), "LA")), (1, 16, 16))[0, 0, 0]
    assert abs(int(grey) - seen[1]) <= 1


def test_a_palette_with_transparency_is_shown_on_white() -> None:
    picture = Image.new("P", (16, 16))
    picture.putpalette([10, 20, 30, 200, 100, 0, 0, 0, 0])
    for column in range(16):
        picture.paste(column % 3, (column, 0, column + 1, 16))
    png = decode(encoded(picture, transparency=bytes([255, 128, 0])), SQUARE)  # an opacity for each colour
    gif = decode(encoded(picture, "GIF", transparency=1), SQUARE)  # one transparent colour
    assert png[:, 0, :3].T.tolist() == [[10, 20, 30], [227, 177, 127], [255, 255, 255]]
    assert gif[:, 0, :3].T.tolist() == [[10, 20, 30], [255, 255, 255], [0, 0, 0]]
    assert decode(encoded(picture), SQUARE)[:, 0, 1].tolist() == [200, 100, 0]


@pytest.mark.parametrize(("mode", "value"), [("L", 7), ("RGB", (7, 8, 9)), ("1", 0)])
def test_a_colour_that_is_marked_as_transparent_is_white(mode: str, value: Any) -> None:
    assert decode(encoded(plain(value, mode), transparency=value), SQUARE).min() == 255


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_colours_come_close_to_rgb(kind: str) -> None:
    original = quarters()
    found = decode(encoded(Image.fromarray(original).convert("CMYK"), kind), (3, 48, 64)).transpose(1, 2, 0)
    inside = np.s_[4:20, 4:28]
    assert np.abs(found[inside].astype(int) - original[inside]).max() <= 8
    assert abs(found.mean() - original.mean()) < 4


def test_the_first_picture_of_several_is_used() -> None:
    pictures = [plain((200, 0, 0)), plain((0, 0, 200))]
    for kind in ("GIF", "TIFF", "WEBP", "MPO"):
        found = decode(encoded(pictures[0], kind, save_all=True, append_images=pictures[1:]), SQUARE)
        assert found[0].mean() > 190, kind
        assert found[2].mean() < 10, kind


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000"])
def test_the_usual_formats_are_decoded(kind: str) -> None:
    found = decode(encoded(plain((200, 100, 48)), kind), SQUARE).reshape(3, -1).mean(1)
    assert np.abs(found - [200, 100, 48]).max() < 4


def test_a_large_photograph_is_not_decoded_in_full_and_looks_the_same() -> None:
    picture = Image.fromarray(quarters(1600, 1200))
    reference = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    found = decode(encoded(picture, "JPEG", quality=95), (3, 32, 32))
    assert np.abs(found.astype(int) - reference).max() <= 12


def test_fit_squashes_crops_or_pads() -> None:
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, :16], wide[:, 16:32], wide[:, 32:] = 50, 100, 150
    content = encoded(Image.fromarray(wide))
    squashed, cropped, padded = (decode(content, (1, 12, 12), fit)[0] for fit in ("squash", "crop", "pad"))
    assert squashed[6, [0, 6, 11]].tolist() == [50, 100, 150]
    assert (cropped[:, 1:-1] == 100).all()
    assert padded[:4].max() == padded[8:].max() == 0
    assert padded[4:8, [0, 6, 11]].tolist() == [[50, 100, 150]] * 4


@given(
    width=st.integers(1, 70),
    height=st.integers(1, 70),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40)),
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
    fit=st.sampled_from(["squash", "crop", "pad"]),
)
def test_any_size_and_mode_becomes_the_shape(width: int, height: int, shape: Any, mode: str, fit: Any) -> None:
    found = decode(encoded(Image.new(mode, (width, height))), shape, fit)
    assert (found.shape, found.dtype) == (shape, np.uint8)


@pytest.mark.parametrize("size", [(5000, 1), (1, 5000)])
def test_an_image_of_one_row_or_column_is_decoded(size: tuple[int, int]) -> None:
    for fit in ("squash", "crop", "pad"):
        assert decode(encoded(plain((9, 9, 9), size=size)), SQUARE, fit).shape == SQUARE  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "content",
    [
        png_that_claims(60000, 60000),
        png_that_claims(10000, 10000),
        b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0),
        b"P6 60000 60000 255\n" + bytes(100),
    ],
    ids=["png", "png-of-100-million", "bmp", "ppm"],
)
def test_a_decompression_bomb_is_refused_before_memory_is_allocated(content: bytes) -> None:
    tracemalloc.start()
    started = time.process_time()
    with pytest.raises(BadImage, match="89,478,485 pixels, a decompression bomb"):
        decode(content, SQUARE)
    assert time.process_time() - started < 1
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


def test_a_bomb_is_refused_if_warnings_are_silenced() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadImage, match="decompression bomb"):
            decode(png_that_claims(10000, 10000), SQUARE)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000"])
def test_a_truncated_file_is_refused(kind: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise), kind)
    for length in (len(content) // 2, 40, 12):
        with pytest.raises(BadImage, match=r"^it is (damaged|not an image of a known format)"):
            decode(content[:length], SQUARE)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no picture at all", "it is not an image of a known format"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"><rect/></svg>', "it is not an image of a known format"),
        (b"PK\x03\x04" + bytes(60), "it is not an image of a known format"),
        (b"%PDF-1.7\n" + bytes(60), "it is not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "it is not an image of a known format"),
        (bytes(1000), "it is not an image of a known format"),
    ],
    ids=["empty", "text", "svg", "zip", "pdf", "postscript", "zeros"],
)
def test_a_file_that_is_not_an_image_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(BadImage) as raised:
        decode(content, SQUARE)
    assert str(raised.value) == reason


@given(
    noise=st.binary(min_size=1, max_size=40), place=st.integers(0, 400), kind=st.sampled_from(["PNG", "GIF", "JPEG"])
)
def test_a_randomly_damaged_file_gives_pixels_or_a_reason(noise: bytes, place: int, kind: str) -> None:
    content = bytearray(encoded(Image.fromarray(quarters(32, 24)), kind))
    content[place : place + len(noise)] = noise
    with contextlib.suppress(BadImage):
        assert decode(bytes(content), SQUARE).shape == SQUARE
