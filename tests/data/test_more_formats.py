"""Formats of phones and hospitals: what becomes of their values, what is said without the package, what is left."""

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.burn.canary import Needle
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import scan
from crodobo.data.decode import decode
from crodobo.errors import BadImage

made_spec = importlib.util.spec_from_file_location("formats_made", Path(__file__).with_name("formats_made.py"))
assert made_spec
assert made_spec.loader
made = importlib.util.module_from_spec(made_spec)
made_spec.loader.exec_module(made)

RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


def grey(content: bytes, size: int = 8) -> np.ndarray:
    return decode(content, (1, size, size))[0]


def noise(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(20, 235, (size, size), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["AVIF", "HEIF"])
def test_photographs_of_phones_are_read(kind: str) -> None:
    pixels = np.zeros((64, 64, 3), np.uint8)
    pixels[:, :32] = (200, 40, 40)
    pixels[:, 32:] = (40, 40, 200)
    content = made.heic(pixels) if kind == "HEIF" else made.encoded(pixels, kind, quality=95)
    found = decode(content, (3, 64, 64)).transpose(1, 2, 0)
    assert np.abs(found.astype(int) - pixels).mean() < 4


def test_grey_dicom_without_a_window_is_stretched() -> None:
    assert grey(made.dicom(RAMP)).tolist() == np.round(RAMP * (255 / 252)).tolist()
    sixteen = RAMP.astype(np.uint16) * 100
    assert grey(made.dicom(sixteen)).tolist() == np.round(RAMP * (255 / 252)).tolist()


def test_dicom_is_rescaled_and_windowed() -> None:
    """A CT image: -1024 is air. The window shows soft tissue only."""
    values = np.array([[0, 904], [1064, 4000]], np.uint16)  # -1024, -120, 40 and 2976 Hounsfield units
    content = made.dicom(
        values, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=[40, 600], WindowWidth=[401, 1600]
    )
    assert grey(content, 2).tolist() == [[0, 26], [128, 255]]
    exact = made.dicom(
        values, RescaleSlope=1, RescaleIntercept=-1024, WindowCenter=40, WindowWidth=400, VOILUTFunction="LINEAR_EXACT"
    )
    assert np.abs(grey(exact, 2).astype(int) - [[0, 26], [128, 255]]).max() <= 1


def test_signed_and_inverted_dicom() -> None:
    signed = (RAMP.astype(np.int16) - 126) * 8
    assert grey(made.dicom(signed)).tolist() == np.round(RAMP * (255 / 252)).tolist()
    inverted = made.dicom(RAMP, PhotometricInterpretation="MONOCHROME1")
    assert grey(inverted).tolist() == (255 - np.round(RAMP * (255 / 252))).tolist()


def test_only_the_first_frame_of_dicom_is_used() -> None:
    frames = np.stack([RAMP, RAMP[::-1], RAMP.T])
    assert grey(made.dicom(frames)).tolist() == grey(made.dicom(RAMP)).tolist()


def test_a_frame_of_enhanced_dicom_has_its_own_rescaling() -> None:
    from pydicom.dataset import Dataset

    item, group = Dataset(), Dataset()
    item.WindowCenter, item.WindowWidth, item.VOILUTFunction = 126, 252, "LINEAR_EXACT"
    group.FrameVOILUTSequence = [item]
    content = made.dicom(RAMP.astype(np.uint16) * 2, SharedFunctionalGroupsSequence=[group])
    assert grey(content).max() == 255
    assert grey(content)[4:].min() == 255, "values above the window are white"


def test_colour_dicom() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert decode(made.dicom(pixels), (3, 8, 8)).transpose(1, 2, 0).tolist() == pixels.tolist()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: made.dicom(RAMP)[:400], "DICOM"),
        (lambda: made.dicom(RAMP, Rows=30_000, Columns=30_000), "decompression bomb"),
        (lambda: made.dicom(RAMP).replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.1.99"), "DICOM"),
        (lambda: made.dicom(RAMP).replace(b"\xe0\x7f\x10\x00OW", b"\xe0\x7f\x12\x00OW"), "without an image"),
        (lambda: made.dicom(RAMP, BitsAllocated=12), "damaged DICOM file"),
    ],
    ids=["cut", "huge", "deflated", "no image", "odd bits"],
)
def test_unusable_dicom_is_refused_without_a_word_of_its_content(content: Callable[[], bytes], reason: str) -> None:
    with pytest.raises(BadImage, match=reason) as raised:
        decode(content(), (1, 8, 8))
    assert "SECRET" not in str(raised.value)


def test_strange_metadata_is_neither_printed_nor_quoted(
    capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    content = made.dicom(RAMP).replace(b"DOE^SECRET^JANE", b"\xff\xfeSECRET^\x00\x1b\xffJOE")
    decode(content, (1, 8, 8))
    with pytest.raises(BadImage):
        decode(content[:-40].replace(b"MONOCHROME2", b"SECRETCHRO2"), (1, 8, 8))
    out, errors = capfd.readouterr()
    assert "SECRET" not in out + errors + "".join(str(warning.message) for warning in recwarn)


@pytest.mark.parametrize(
    ("package", "make", "words"),
    [
        ("pydicom", lambda: made.dicom(RAMP), r'DICOM image, which needs pydicom: pip install "crodobo\[dicom\]"'),
        ("pillow_heif", lambda: made.heic(noise(64)), r'HEIC image, .* pip install "crodobo\[heif\]"'),
    ],
)
def test_without_the_package_the_reason_names_the_format_and_the_extra(
    package: str, make: Callable[[], bytes], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, real = make(), importlib.util.find_spec

    def hidden(name: str) -> ModuleSpec | None:
        return None if name == package else real(name)

    monkeypatch.setattr("crodobo.data.formats.find_spec", hidden)
    with pytest.raises(BadImage, match=words):
        decode(content, (3, 16, 16))


def needles_of(pixels: np.ndarray) -> list[Needle]:
    """The ends of two rows: as bytes, as 16-bit numbers, as RGB and as RGBA."""
    found = []
    for row in (pixels[len(pixels) // 2], pixels[-1]):
        piece = row[-12:]
        three, four = np.repeat(piece[:, None], 3, axis=1), np.repeat(piece[:, None], 4, axis=1)
        four[:, 3] = 255
        found += [piece, piece.astype(np.uint16), three, four]
    return [Needle(each.tobytes(), "pixels") for each in found]


def test_strict_burning_holds_for_these_decoders(tmp_path: Path) -> None:
    """Widths that are no multiple of 16 or 32: vector code treats the ends of rows in another way."""
    needles = [Needle(text.encode(), "patient") for text in (made.NAME, made.NUMBER, "SECRET^JANE")]
    for number, size in enumerate((28, 37)):
        pixels = noise(size, number)
        colour = np.repeat(pixels[:, :, None], 3, axis=2)
        (tmp_path / f"{size}.dcm").write_bytes(made.dicom(pixels))
        (tmp_path / f"{size}.avif").write_bytes(made.encoded(colour, "AVIF", quality=95))
        needles += needles_of(pixels)
        with Image.open(tmp_path / f"{size}.avif") as image:
            needles += needles_of(np.asarray(image.convert("RGB"))[:, :, 0])
    script = str(Path(__file__).with_name("decoding_process.py"))
    files = [str(path) for path in sorted(tmp_path.iterdir(), reverse=True)]  # the AVIF image of 28 pixels comes last
    with subprocess.Popen(
        [sys.executable, script, *files], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        memory = ProcessMemory.of(process.pid)
        result = scan(memory, needles)
        memory.close()
        process.communicate("\n")
    assert result.scanned > 2**20
    assert result.found == 0, [str(find) for find in result.finds]


def test_a_format_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict burning refuses HEIC, because its proof finds what the decoder leaves."""
    content = made.heic(noise(64))
    assert decode(content, (3, 16, 16)).any()
    monkeypatch.setattr("crodobo.data.formats.REFUSED", refused := {"HEIF"})
    monkeypatch.setattr("crodobo.data.decode.REFUSED", refused)
    with pytest.raises(BadImage, match="strict burning refuses it"):
        decode(content, (3, 16, 16))
    renamed = content.replace(b"ftypheic", b"ftypzzzz", 1)
    with pytest.raises(BadImage):
        decode(renamed, (3, 16, 16))
