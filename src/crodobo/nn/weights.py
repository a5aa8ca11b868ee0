"""Reading weights files without running code that they may contain."""

import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from crodobo.errors import BadWeights


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a `.safetensors`, `.pth`, `.pt`, `.bin` or `.tar` file by name."""
    if not path.is_file():
        raise BadWeights(f"There is no weights file {path}.", "Check the path.", settings=("weights",))
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in {".pth", ".pt", ".bin", ".tar"}:
            return _state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # a damaged file can raise almost anything
        problem, remedy = "cannot be read as weights: it is damaged or has another format", "Give another file."
        if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
            problem = "contains more than tensors and could run code, so it was not loaded"
            remedy = "Save only its state_dict."
        raise BadWeights(f"{path} {problem}.", remedy) from error
    problem = f"{path} has the unknown file type {path.suffix or 'none'}."
    raise BadWeights(problem, "Use .safetensors, or .pth with a state_dict.")


def _state_dict(loaded: object) -> dict[str, Tensor]:
    """The state_dict in a loaded file. Many trainers wrap it in another dict."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise ValueError("no state_dict")
    return {str(key).removeprefix("module."): value for key, value in loaded.items()}
