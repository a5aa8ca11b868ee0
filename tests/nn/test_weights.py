"""Weights files are read without running code in them."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from crodobo.errors import BadWeights
from crodobo.nn.weights import read_weights

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


def assert_same(read: dict[str, torch.Tensor]) -> None:
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], TENSORS[name]) for name in TENSORS)


def test_safetensors_are_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "w.safetensors")
    assert_same(read_weights(tmp_path / "w.safetensors"))


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("modern", [True, False], ids=["zip", "legacy"])
def test_files_of_torch_are_read(tmp_path: Path, suffix: str, modern: bool) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=modern)
    assert_same(read_weights(path))


def test_wrappers_and_prefixes_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    prefixed = {f"module.{key}": value for key, value in TENSORS.items()}
    for wrapped in (prefixed, {"state_dict": prefixed, "epoch": 9}, {"model": prefixed, "lr": 0.1}):
        torch.save(wrapped, path)
        assert_same(read_weights(path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match=r"no weights file .*none\.pth"):
        read_weights(tmp_path / "none.pth")


def test_a_folder_is_not_a_weights_file(tmp_path: Path) -> None:
    with pytest.raises(BadWeights, match="no weights file"):
        read_weights(tmp_path)


def test_an_unknown_file_type_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.onnx").write_bytes(b"anything")
    with pytest.raises(BadWeights, match=r"unknown file type \.onnx\. Use \.safetensors"):
        read_weights(tmp_path / "w.onnx")


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f"w{suffix}"
    save_file(TENSORS, path) if suffix == ".safetensors" else torch.save(TENSORS, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(BadWeights, match="damaged or has another format"):
        read_weights(path)


def test_a_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(b"this is not a checkpoint\n")
    with pytest.raises(BadWeights):
        read_weights(tmp_path / "w.pth")


def test_a_truncated_legacy_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(TENSORS, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for end in range(0, len(whole), 11):
        path.write_bytes(whole[:end])
        with pytest.raises(BadWeights):
            read_weights(path)


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}, torch.ones(2)], ids=["list", "numbers", "tensor"])
def test_a_file_without_a_state_dict_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(BadWeights, match="cannot be read as weights"):
        read_weights(tmp_path / "w.pth")


@pytest.mark.parametrize("plain", [False, True], ids=["torch", "pickle"])
def test_code_in_a_weights_file_is_never_run(tmp_path: Path, plain: bool) -> None:
    path, trace = tmp_path / "w.pth", tmp_path / "trace"
    content = {"state_dict": TENSORS, "more": Harmful(trace)}
    path.write_bytes(pickle.dumps(content, protocol=2)) if plain else torch.save(content, path)
    with pytest.raises(BadWeights, match="could run code"):
        read_weights(path)
    assert not trace.exists()
    pickle.loads(path.read_bytes()) if plain else torch.load(path, weights_only=False)
    assert trace.exists()  # the file really was harmful
