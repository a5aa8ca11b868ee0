"""The cache: a folder for data that can be made again. Nothing of a private stream is ever stored in it."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def cache_folder() -> Path:
    """`$CRODOBO_CACHE`, or `crodobo` in the user's cache folder."""
    if named := os.environ.get("CRODOBO_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "crodobo"


def cached(name: str, make: Callable[[], Arrays]) -> Arrays:
    """Load the arrays of this name. They are made on the first call, or if the file in the cache is damaged."""
    path = cache_folder() / f"{name}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except Exception:  # missing, or damaged in any way: it is only a cache
        arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        with unfinished.open("wb") as output:
            np.savez(output, allow_pickle=False, **arrays)
        unfinished.replace(path)
    except OSError:
        pass  # without a writable cache, the arrays are made each time
    return arrays
