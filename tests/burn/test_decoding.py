"""Decoding leaves no pixels behind, whatever the format of a file; a decoder that does is found by the proof."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, UnidentifiedImageError

from crodobo.burn.canary import Canary
from crodobo.burn.canary_files import KINDS, SIZES, canary_files, decoded_needles
from crodobo.data.decode import decode, open_image
from crodobo.data.formats import FORMATS

HERE = Path(__file__).parent
SMALL = ((28, 28), (31, 33), (16, 20), (40, 40))  # numpy caches arrays of less than 1,024 bytes
VARIABLES = {"PILLOW_BLOCKS_MAX": "100", "PILLOW_BLOCK_SIZE": "64k", "PILLOW_ALIGNMENT": "64"}


def memory_of(*command: str, environment: dict[str, str]) -> Iterator[bytes]:
    """All memory that a process can write to, after it has handed it over."""
    here, there = socket.socketpair()
    with here, there:
        arguments = [sys.executable, *command, str(there.fileno())]
        with subprocess.Popen(arguments, pass_fds=(there.fileno(),), env=os.environ | environment) as process:
            there.close()
            word, (maps, mem), _, _ = socket.recv_fds(here, 16, 2)
            assert word == b"decoded"
            try:
                with open(maps) as lines:
                    for line in lines.read().splitlines():
                        bounds, permissions = line.split()[:2]
                        if permissions.startswith("rw") and "[v" not in line:
                            start, end = (int(bound, 16) for bound in bounds.split("-"))
                            yield os.pread(mem, end - start, start)
            finally:
                os.close(mem)
                process.kill()


@pytest.mark.parametrize("environment", [{}, VARIABLES], ids=["as it is", "with variables of Pillow"])
def test_no_picture_of_any_depth_is_left_by_decoding(tmp_path: Path, environment: dict[str, str]) -> None:
    random, wanted = np.random.default_rng(), {}
    for number, size in enumerate(SMALL):
        wide = random.integers(0, 2**16, size, dtype=np.uint16)
        real = random.random(size).astype(np.float32)
        wide[0, 0], colour = 2**16 - 1, random.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(wide).save(tmp_path / f"{number}.png")
        Image.fromarray(real).save(tmp_path / f"{number}.tiff")
        Image.fromarray(colour).save(tmp_path / f"{number}-colour.png")
        wanted[f"16 bits, {size}"] = np.round(wide * (255 / 65535)).astype(np.uint8)
        wanted[f"floats, {size}"] = np.round(real.astype(float) * 255).astype(np.uint8)
        wanted[f"colour, {size}"] = colour
        wanted[f"four bytes, {size}"] = np.dstack([colour, np.full(size, 255, np.uint8)])
    photograph = random.integers(0, 256, (200, 200, 3), dtype=np.uint8)  # takes several of Pillow's blocks
    Image.fromarray(photograph).save(tmp_path / "photograph.png")
    wanted["photograph"] = np.dstack([photograph, np.full((200, 200), 255, np.uint8)])
    rows = {row.tobytes(): name for name, picture in wanted.items() for row in picture[4::8]}
    found, scanned = set(), 0
    for content in memory_of(str(HERE / "decoding.py"), str(tmp_path), environment=environment):
        scanned += len(content)
        found |= {name for row, name in rows.items() if row in content}
    assert scanned > 10**8
    assert found == set()


def proof_of(decoder: str) -> str:
    done = subprocess.run([sys.executable, HERE / "leaky.py", decoder], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("decoder", "form"), [("numpy", "bytes as a decoded picture of mode L"), ("Pillow", "a decoded picture of mode ")]
)
def test_the_proof_refuses_a_decoder_that_keeps_pixels(decoder: str, form: str) -> None:
    assert "traces are still in memory" in (said := proof_of(decoder))
    assert form in said


def test_the_proof_accepts_the_decoder() -> None:
    """It has made and decoded a canary of every format but HEIC, which strict burning refuses."""
    assert proof_of("ours") == "nothing"


def test_a_canary_of_every_format_and_mode_is_decoded() -> None:
    canary, formats, modes = Canary("0"), set(), set()
    files = canary_files(canary)
    for content in files:
        with contextlib.suppress(UnidentifiedImageError), Image.open(io.BytesIO(content)) as image:  # DICOM
            formats.add(image.format)
        with open_image(content, (3, 16, 16)) as image:
            modes.add(image.mode)
        assert decode(content, (3, 16, 16)).any()
    assert len(files) == len(SIZES) * (sum(len(each) for _, each, _ in KINDS) + 8)
    assert formats >= set(FORMATS)
    assert modes >= {"1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "I;16", "I", "F"}


def test_needles_of_decoded_files_are_long_and_not_plain() -> None:
    for needle in decoded_needles(canary_files(Canary("1")), (3, 16, 16)):
        assert len(needle.content) >= 8
        assert len(set(needle.content)) > 1


def test_decoded_needles_are_those_of_their_canary() -> None:
    one, other = (
        {needle.content for needle in decoded_needles(canary_files(Canary(seed)), (1, 16, 16))} for seed in "12"
    )
    assert not one & other


def test_the_proof_is_repeated_between_queries(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "crodobo", "run", "--burn", "strict", "--prove-every", "2", "--queries", "4"]
    command += ["--warmup", "1", "--query-size", "8", "--set", "warmup_batch=8", "--out", str(tmp_path), "-q"]
    subprocess.run(command, check=True)
    entries = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    scans = [entry["scan"] for entry in entries if entry["kind"] == "query"]
    assert [scan and scan["found"] for scan in scans] == [None, 0, None, 0]
