"""Reading weights files, without running any code that they may carry."""

import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from crodobo.errors import BadWeights


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pth`, `.pt` or `.bin` file by name."""
    if not path.is_file():
        raise BadWeights(f"there is no weights file {path}; check the path")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in {".pth", ".pt", ".bin", ".tar"}:
            return _tensors(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # what a damaged file raises is anyone's guess
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            raise BadWeights(
                f"{path} holds more than tensors and was not loaded, since it could run code; save its state_dict alone"
            ) from error
        raise BadWeights(f"{path} cannot be read as weights; the file is damaged or of another kind") from error
    raise BadWeights(f"{path} is of a kind that is not read; use .safetensors, or a .pth with a state_dict")


def _tensors(loaded: object) -> dict[str, Tensor]:
    """The state_dict in what was loaded, which many trainers wrap once more."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError("no state_dict")
    return {str(key).removeprefix("module."): value for key, value in loaded.items()}
