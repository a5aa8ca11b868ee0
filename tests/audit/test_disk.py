"""Traces of images are found in every hiding place, and nothing is found where there are none."""

import base64
import gzip
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

from crodobo.audit import contents
from crodobo.audit.disk import audit_disk
from crodobo.audit.patterns import Pattern, payload_start, pieces
from crodobo.burn.searcher import BLOCK, Searcher
from crodobo.data.decode import decode
from crodobo.errors import BadData

SIZE = 16


def encode(kind: str = "PNG", seed: int = 0, mode: str = "RGB", size: tuple[int, int] = (40, 30)) -> bytes:
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    values = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind)
    return file.getvalue()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.png"
    path.write_bytes(encode())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that a run wrote, without the secret."""
    path = tmp_path / "run"
    (path / "state").mkdir(parents=True)
    (path / "other.png").write_bytes(encode(seed=1))
    (path / "noise.bin").write_bytes(np.random.default_rng(2).bytes(100_000))
    (path / "empty").touch()
    (path / "report.html").write_text(f"<img src='data:image/png;base64,{base64.b64encode(encode(seed=3)).decode()}'>")
    save_file({"weight": torch.rand(100, 100)}, path / "state" / "model.safetensors")
    return path


def pixels(secret: Path, grey: bool = False) -> np.ndarray:
    return decode(secret.read_bytes(), (1 if grey else 3, SIZE, SIZE))


def zipped(content: bytes, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("inner.bin", content)
    return file.getvalue()


def as_npz(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, values=values)
    return file.getvalue()


HIDDEN: dict[str, Callable[[Path], bytes]] = {
    "a copy": lambda secret: secret.read_bytes(),
    "a copy in the middle": lambda secret: b"x" * 12_345 + secret.read_bytes() + b"y" * 99,
    "the second half": lambda secret: secret.read_bytes()[len(secret.read_bytes()) // 2 :],
    "bytes, CHW": lambda secret: b"abc" + pixels(secret).tobytes(),
    "bytes, HWC": lambda secret: pixels(secret).transpose(1, 2, 0).tobytes(),
    "bytes, grey": lambda secret: pixels(secret, grey=True).tobytes(),
    "floats, CHW": lambda secret: b"a" + (pixels(secret) / np.float32(255)).astype(np.float32).tobytes(),
    "floats, HWC": lambda secret: (pixels(secret).transpose(1, 2, 0) / np.float32(255)).astype(np.float32).tobytes(),
    "floats as torch makes them": lambda secret: (torch.from_numpy(pixels(secret)).float() / 255).numpy().tobytes(),
    "half of the rows": lambda secret: pixels(secret)[0, 8:].tobytes(),
    "gzip": lambda secret: gzip.compress(pixels(secret).tobytes()),
    "zip": lambda secret: zipped(secret.read_bytes()),
    "zip, stored": lambda secret: zipped(secret.read_bytes(), zipfile.ZIP_STORED),
    "npz": lambda secret: as_npz(pixels(secret)),
    "npz of floats": lambda secret: as_npz((pixels(secret) / np.float32(255)).astype(np.float32)),
    "base64 in HTML": lambda secret: b"<img src='data:;base64," + base64.b64encode(secret.read_bytes()) + b"'>",
    "base64 in a zip in a gzip": lambda secret: gzip.compress(zipped(base64.b64encode(pixels(secret).tobytes()))),
}


@pytest.mark.parametrize("hide", HIDDEN.values(), ids=HIDDEN)
def test_a_hidden_image_is_found(hide: Callable[[Path], bytes], secret: Path, folder: Path) -> None:
    place = folder / "state" / ".hidden"
    place.write_bytes(hide(secret))
    found = audit_disk(folder, [secret], sizes=[SIZE]).found
    assert found
    assert all(text.startswith(str(place)) and str(secret) in text for text in found)


def test_a_tensor_in_a_checkpoint_is_found(secret: Path, folder: Path) -> None:
    save_file({"x": torch.from_numpy(pixels(secret)).float() / 255}, folder / "checkpoint.safetensors")
    (found,) = audit_disk(folder, [secret], sizes=[SIZE]).found
    assert "checkpoint.safetensors: pixels at 16×16, CHW, floats of" in found


def test_nothing_is_found_in_clean_files(secret: Path, folder: Path) -> None:
    report = audit_disk(folder, [secret], sizes=[SIZE])
    assert (report.found, report.noted) == ([], [])
    assert report.checked[0].startswith(f"5 files under {folder}, ")
    assert any("encoded again, rescaled" in text for text in report.unseen)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "GIF", "TIFF"])
def test_another_image_of_the_same_format_does_not_match(kind: str, mode: str, tmp_path: Path, folder: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(encode(kind, mode=mode))
    (folder / "alike").write_bytes(encode(kind, seed=1, mode=mode))
    assert audit_disk(folder, [secret], sizes=[SIZE]).found == []
    (folder / "same").write_bytes(encode(kind, mode=mode))
    assert any("encoded bytes" in text for text in audit_disk(folder, [secret], sizes=[SIZE]).found)


def test_plain_areas_are_skipped_and_plain_images_are_noted(tmp_path: Path, folder: Path) -> None:
    plain = tmp_path / "plain.png"
    Image.new("L", (20, 20), 7).save(plain)
    (folder / "zeros").write_bytes(bytes([7]) * 10_000)
    report = audit_disk(folder, [plain], sizes=[SIZE])
    assert report.sound
    assert f"{plain} is too plain to search for its pixels." in report.noted
    tiny = tmp_path / "tiny.png"
    tiny.write_bytes(encode(mode="L", size=(2, 2)))
    report = audit_disk(folder, [tiny])
    assert report.noted == [f"{tiny} is too small or too plain to search for its encoded bytes."]


def test_the_default_size_is_that_of_the_models_in_the_folder(secret: Path, folder: Path) -> None:
    from crodobo import SourceOnly
    from crodobo.core.source import Source
    from crodobo.session.model import save_model

    (folder / "leak").write_bytes(pixels(secret).tobytes())
    report = audit_disk(folder, [secret])
    assert report.sound
    assert "no model in the folder tells their size" in report.unseen[0]
    method = SourceOnly(Source(torch.rand(4, 3, SIZE, SIZE), [0, 1, 0, 1]), warmup=0)
    save_model(folder / "model.safetensors", method)
    assert not audit_disk(folder, [secret]).sound


def test_all_fits_are_searched_unless_one_is_given(secret: Path, folder: Path) -> None:
    (folder / "leak").write_bytes(decode(secret.read_bytes(), (3, SIZE, SIZE), "pad").tobytes())
    assert not audit_disk(folder, [secret], sizes=[SIZE]).sound
    assert not audit_disk(folder, [secret], sizes=[SIZE], fit="pad").sound
    assert audit_disk(folder, [secret], sizes=[SIZE], fit="squash").sound


def test_many_finds_are_summarised(tmp_path: Path, folder: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(30):
        (images / f"{number}.png").write_bytes(encode(seed=100 + number))
    (folder / "all").write_bytes(b"".join(path.read_bytes() for path in images.iterdir()))
    found = audit_disk(folder, [images], sizes=[SIZE]).found
    assert (len(found), found[-1]) == (21, "And 10 more.")


def test_files_that_cannot_be_unpacked_are_noted(secret: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "torn.gz").write_bytes(gzip.compress(secret.read_bytes())[:100])
    (folder / "no.zip").write_bytes(b"PK and no zip")
    deep = secret.read_bytes()
    for _ in range(contents.DEPTH + 1):
        deep = gzip.compress(deep)
    (folder / "deep.gz").write_bytes(deep)
    report = audit_disk(folder, [secret], sizes=[SIZE])
    noted = " ".join(report.noted)
    assert all(name in noted for name in ("torn.gz was not unpacked", "no.zip was not", "packed more than 3 times"))
    monkeypatch.setattr(contents, "LARGEST", 1000)
    (folder / "bomb.gz").write_bytes(gzip.compress(bytes(2000)))
    assert "it is larger than" in " ".join(audit_disk(folder, [secret], sizes=[SIZE]).noted)


def test_an_unreadable_file_is_a_finding(secret: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def refuse(self: Path, *arguments: str, **named: str) -> object:
        if self.name == "noise.bin":
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", refuse)
    (found,) = audit_disk(folder, [secret], sizes=[SIZE]).found
    assert "noise.bin is not readable (Permission denied)" in found


def test_an_unreadable_folder_is_a_finding(secret: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("state"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (found,) = audit_disk(folder, [secret], sizes=[SIZE]).found
    assert found == f"{folder / 'state'} is not readable (Permission denied) and was not searched."


def test_links_are_not_followed(secret: Path, folder: Path) -> None:
    (folder / "link.png").symlink_to(secret)
    assert audit_disk(folder, [secret], sizes=[SIZE]).sound


def test_invalid_arguments_give_one_sentence(tmp_path: Path, secret: Path, folder: Path) -> None:
    with pytest.raises(BadData, match="There is no folder"):
        audit_disk(tmp_path / "nowhere", [secret])
    with pytest.raises(BadData, match=r"There is no .*nowhere to search for"):
        audit_disk(folder, [tmp_path / "nowhere"])
    (tmp_path / "none").mkdir()
    with pytest.raises(BadData, match="There is no image to search for"):
        audit_disk(folder, [tmp_path / "none"])
    text = tmp_path / "text.png"
    text.write_text("no picture")
    with pytest.raises(BadData, match="cannot be searched for: it is not an image"):
        audit_disk(folder, [text], sizes=[SIZE])


@given(before=st.integers(0, 40), length=st.sampled_from([8, 9, 31, 32, 128]), after=st.integers(0, 9))
def test_a_pattern_is_found_at_every_position(before: int, length: int, after: int) -> None:
    piece = np.random.default_rng(length).bytes(length)
    searcher = Searcher([Pattern(piece, "image", "form")])
    content = b"\0" * before + piece + b"\0" * after
    assert [place for _, place in searcher.find(content)] == [before]
    assert list(searcher.find(content.replace(piece, piece[:-1] + bytes([piece[-1] ^ 1])))) == []


@pytest.mark.parametrize("place", [BLOCK - 40, BLOCK - 32, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_pattern_across_two_chunks_is_found_once(place: int) -> None:
    piece = np.random.default_rng(0).bytes(32)
    content = bytearray(BLOCK + 100)
    content[place : place + 32] = piece
    assert [found for _, found in Searcher([Pattern(piece, "a", "b")]).find(bytes(content))] == [place]


def test_a_payload_starts_after_the_header() -> None:
    assert payload_start(b"\x89PNG header IDAT picture") == 16
    assert payload_start(b"\xff\xd8\xff\xc4\x00\x04..\xff\xda picture") == 10


def test_jpeg_tables_are_skipped_even_with_a_thumbnail_in_the_header() -> None:
    small, large = encode("JPEG", size=(8, 8)), encode("JPEG")
    segment = b"\xff\xe1" + (len(small) + 2).to_bytes(2, "big") + small
    content = large[:2] + segment + large[2:]
    assert payload_start(content) == payload_start(large) + len(segment)
    assert b"\xff\xc4" not in content[payload_start(content) :]


def test_pieces_are_spread_over_all_values() -> None:
    values = np.random.default_rng(0).integers(0, 256, 32 * 1000, dtype=np.uint8)
    found = pieces(values)
    places = [values.tobytes().index(piece) for piece in found]
    assert len(found) == 32
    assert (places[0], places[-1]) == (0, 32 * 999)
