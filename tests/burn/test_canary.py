"""Any piece of a canary is found, in every form that a real image takes."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crodobo.burn.canary import Canary, Needle
from crodobo.burn.process import CHUNK, ProcessMemory, Region
from crodobo.burn.scan import scan
from crodobo.core import pixels
from crodobo.data.decode import decode
from crodobo.nn.backbones import build_backbone
from crodobo.nn.network import Network

SEEDS = st.integers(0, 10**6).map(str)


def forms(canary: Canary, channels: int = 1) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for needle in canary.needles(channels, [0.5] * channels, [0.5] * channels):
        found.setdefault(needle.form.split(",")[0], []).append(needle.content)
    return found


def contains_any(content: bytes, needles: list[bytes]) -> bool:
    return any(needle in content for needle in needles)


@given(SEEDS, st.integers(0, 50), st.booleans())
def test_any_eleven_adjacent_values_contain_a_needle(seed: str, start: int, mirrored: bool) -> None:
    canary = Canary(seed)
    row = canary.row(64)[::-1] if mirrored else canary.row(64)
    piece = np.frombuffer(row[start : start + 11], np.uint8)
    assert contains_any(piece.tobytes(), forms(canary)["bytes"])
    assert contains_any((piece / np.float32(255)).tobytes(), forms(canary)["floats"])


@given(SEEDS, SEEDS)
def test_needles_do_not_match_another_canary(one: str, other: str) -> None:
    if one != other:
        assert not contains_any(Canary(one).row(512), forms(Canary(other))["bytes"])


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (3, 17, 20)])
def test_a_canary_decodes_to_its_rows(shape: tuple[int, int, int]) -> None:
    canary = Canary("0")
    assert Image.open(io.BytesIO(canary.encoded(shape))).size == (shape[2], shape[1])
    assert (decode(canary.encoded(shape), shape) == np.frombuffer(canary.row(shape[2]), np.uint8)).all()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("backbone", ["small", "resnet18"])
def test_float_needles_equal_the_floats_of_torch_bit_by_bit(channels: int, backbone: str) -> None:
    canary, shape = Canary("7"), (channels, 32, 32)
    network = Network(build_backbone(backbone, shape), 4)
    batch = torch.from_numpy(decode(canary.encoded(shape), shape))[None]
    unit = pixels.to_unit(batch)
    scaled = (unit - network.mean) / network.std
    mean, std = (values.flatten().expand(channels).tolist() for values in (network.mean, network.std))
    needles = canary.needles(channels, mean, std)

    def forms_in(tensor: torch.Tensor) -> set[str]:
        return {needle.form for needle in needles if needle.content in tensor.numpy().tobytes()}

    last = ", channels last" if channels > 1 else ""
    assert forms_in(batch) == {"bytes"}
    assert forms_in(unit.contiguous()) == {"floats"}
    assert forms_in(unit.permute(0, 2, 3, 1)) >= {f"floats{last}"}
    assert forms_in(scaled.contiguous()) == {"normalised floats"}
    assert forms_in(scaled.permute(0, 2, 3, 1)) >= {f"normalised floats{last}"}


class FakeMemory(ProcessMemory):
    """A process with one region."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def regions(self) -> list[Region]:
        return [Region(0, len(self.content), "[heap]")]

    def read(self, region: Region, overlap: int):  # type: ignore[no-untyped-def]
        for start in range(0, len(self.content), CHUNK):
            yield start, self.content[start : start + CHUNK + overlap]


@pytest.mark.parametrize("place", [0, CHUNK - 8, CHUNK - 3, CHUNK, 2 * CHUNK - 1])
def test_a_needle_across_two_chunks_is_counted_once(place: int) -> None:
    content = bytes(place) + b"a needle" + bytes(CHUNK)
    found = scan(FakeMemory(content), [Needle(b"a needle", "bytes"), Needle(b"another, longer needle", "bytes")])
    assert [(find.address, find.bytes) for find in found.finds] == [(place, 8)]
    assert (found.found, found.scanned) == (8, len(content))


def test_this_process_is_searched() -> None:
    secret = bytearray(b"%d is nowhere else" % id(object()))
    own = ProcessMemory.of("self")
    try:
        found = scan(own, [Needle(bytes(secret), "bytes")])
    finally:
        own.close()
    assert found.found >= len(secret)
    assert found.regions > 10
    assert found.scanned > 10**7
