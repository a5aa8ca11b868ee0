"""Tensor files keep tensors and header, and any other file is refused."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from crodobo.storage.tensors import HEADER, UnreadableTensors, load_header, load_tensors, save_tensors, with_prefix

TENSORS = {"a.x": torch.arange(6).reshape(2, 3), "b.x": torch.tensor(0.5, dtype=torch.float64)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tensors.safetensors"
    save_tensors(path, TENSORS, {"format": 4, "name": "ä"})
    return path


def test_tensors_and_header_are_read_as_they_were_saved(path: Path) -> None:
    tensors, header = load_tensors(path)
    assert header == load_header(path) == {"format": 4, "name": "ä"}
    assert tensors.keys() == TENSORS.keys()
    for name, value in tensors.items():
        assert torch.equal(value, TENSORS[name])
        assert value.dtype == TENSORS[name].dtype


def test_tensors_are_selected_by_a_prefix() -> None:
    assert list(with_prefix("a.", TENSORS)) == ["x"]


def test_a_tensor_that_is_not_contiguous_is_saved(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"x": TENSORS["a.x"].T}, {})
    assert torch.equal(load_tensors(tmp_path / "t")[0]["x"], TENSORS["a.x"].T)


def test_a_private_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", TENSORS, {}, private=True)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o600


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not tensors"),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "cut in the header": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "without a header": lambda path: save_file(TENSORS, path),
    "of another program": lambda path: save_file(TENSORS, path, {"format": "pt"}),
    "with a header that is not JSON": lambda path: save_file(TENSORS, path, {HEADER: "{"}),
    "with a header that is a list": lambda path: save_file(TENSORS, path, {HEADER: json.dumps([1])}),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_file_that_is_not_ours_or_damaged_is_refused(damage: Callable[[Path], object], path: Path) -> None:
    damage(path)
    for load in (load_tensors, load_header):
        with pytest.raises(UnreadableTensors):
            load(path)
