"""Checkpoints: all that a run needs to go on, in one safetensors file, the newest only.

Weights, optimiser moments, generators, the position in the stream and the record of the predictions so far; never
a target sample. Only the newest is kept, because the difference of two consecutive ones would reveal the gradient
of the queries between them. For the same reason its owner alone can read it.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crodobo.errors import BadCheckpoint
from crodobo.storage.files import unfinished_name, write_atomically

FORMAT = 4
NAME = "checkpoint.safetensors"


def save_checkpoint(
    folder: Path, tensors: dict[str, Tensor], settings: dict[str, Any], progress: dict[str, Any]
) -> None:
    """Replace the folder's checkpoint."""
    header = {"format": FORMAT, "settings": settings, "progress": progress}
    content = save({name: value.contiguous() for name, value in tensors.items()}, {"crodobo": json.dumps(header)})
    write_atomically(folder / NAME, content, private=True)


def load_checkpoint(folder: Path, settings: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and progress of the folder's checkpoint, or None where there is none.

    A checkpoint made with other settings is refused: going on from it would give a result that neither has.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["crodobo"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BadCheckpoint(
            f"{path} is damaged and cannot be continued; delete it, or start over without --resume"
        ) from error
    if header["format"] != FORMAT:
        raise BadCheckpoint(f"{path} is of another version of crodobo; start over without --resume")
    if different := differences(header["settings"], settings):
        raise BadCheckpoint(
            f"{path} belongs to a run with other settings ({different}); "
            "give the same settings, another --out, or start over without --resume"
        )
    return tensors, header["progress"]


def delete_checkpoint(folder: Path) -> bool:
    """Remove the folder's checkpoint; whether there was one."""
    path = folder / NAME
    there = path.exists()
    for each in (path, unfinished_name(path)):
        each.unlink(missing_ok=True)
    return there


def differences(stored: dict[str, Any], given: dict[str, Any]) -> str:
    """The settings in which two runs differ, for people.

    >>> differences({"seed": 0, "options": {"tau": 0.9}}, {"seed": 1, "options": {"tau": 0.9}})
    'seed 0, not 1'
    """
    flat_stored, flat_given = _flatten(stored), _flatten(given)
    return ", ".join(
        f"{name} {flat_stored.get(name)}, not {flat_given.get(name)}"
        for name in sorted(flat_stored | flat_given)
        if flat_stored.get(name) != flat_given.get(name)
    )


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = settings.get("options") or {}
    data: dict[str, Any] = settings.get("data") or {}
    return settings | options | data | {"options": None, "data": None}
