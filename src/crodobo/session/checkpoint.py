"""Checkpoints: everything a session needs to go on, in one safetensors file.

Weights, optimiser moments, generators and progress; never a target sample. Only the newest is kept, because the
difference between two checkpoints reveals the gradient of the queries between them. For the same reason only its owner
can read it, and `Spacing` keeps the checkpoints of private streams apart.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from crodobo.errors import BadCheckpoint, OtherImages
from crodobo.storage.files import unfinished_name
from crodobo.storage.tensors import UnreadableTensors, load_tensors, save_tensors

Tensors = dict[str, Tensor]
FORMAT = 8
NAME = "checkpoint.safetensors"
STAMP = "stamp"  # the key of the data's stamp in an identity
CLASSES = "classes"  # the key of the names of the classes in the progress
PLACES = ("source", "folder")  # of the public images, in the data of an identity


def save_checkpoint(folder: Path, tensors: Tensors, identity: dict[str, Any], progress: dict[str, Any]) -> None:
    """Replace the folder's checkpoint."""
    header = {"format": FORMAT, "identity": identity, "progress": progress}
    save_tensors(folder / NAME, tensors, header, private=True)


def amend_checkpoint(folder: Path, progress: dict[str, Any]) -> None:
    """Replace values of the progress in the folder's checkpoint. Raises `UnreadableTensors` if there is none."""
    tensors, header = load_tensors(folder / NAME)
    save_checkpoint(folder, tensors, header["identity"], header["progress"] | progress)


def carry_over(folder: Path, identity: dict[str, Any], classes: Sequence[str], settings: tuple[str, ...]) -> bool:
    """Give a checkpoint of other public images this identity. Returns False if there is none of other images.

    All other settings must be the same, and the classes too: a network has an output for each.
    """
    path = folder / NAME
    if not path.exists():
        return False
    try:
        tensors, header = load_tensors(path)
        stored, progress = dict(header["identity"]), dict(header["progress"])
    except (UnreadableTensors, KeyError, TypeError, ValueError):
        return False  # `load_checkpoint` says what is wrong
    if (
        header.get("format") != FORMAT
        or stored == identity
        or differences(_without_places(stored), _without_places(identity))
    ):
        return False
    if progress.get(CLASSES) != list(classes):
        problem = f"The learners in {path} know other classes than the public images have."
        raise BadCheckpoint(
            problem, "Use public images of the same classes, or start over.", settings=(*settings, "fresh")
        )
    save_checkpoint(folder, tensors, identity, progress)
    return True


def _without_places(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity without what says where the public images are and what they are."""
    data = {name: value for name, value in (identity.get("data") or {}).items() if name not in PLACES}
    return identity | {STAMP: None, "benchmark": None, "data": data}


def load_checkpoint(
    folder: Path, identity: dict[str, Any], settings: tuple[str, ...]
) -> tuple[Tensors, dict[str, Any]] | None:
    """Tensors and progress of the folder's checkpoint, or None if the folder has no checkpoint.

    A checkpoint of other settings is refused: going on from it would give a result that belongs to neither.
    `settings` names the settings that the remedies are about.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        tensors, header = load_tensors(path)
    except UnreadableTensors as error:
        problem = f"The checkpoint {path} is damaged."
        raise BadCheckpoint(problem, "Delete it, or start over.", settings=settings) from error
    if header.get("format") != FORMAT:
        raise other_version(folder, settings)
    stored = header["identity"]
    kind = BadCheckpoint if differences(_without_places(stored), _without_places(identity)) else OtherImages
    if different := differences(stored | {STAMP: None}, identity | {STAMP: None}):
        problem = f"The checkpoint {path} was made with other settings: {different}."
        raise kind(problem, "Use the same settings or another folder, or start over.", settings=settings)
    if stored.get(STAMP) != identity.get(STAMP):  # after the settings, which may change the images too
        problem = f"The images or their labels have changed since {path} was made."
        raise kind(problem, "Use another folder, or start over.", settings=settings)
    return tensors, header["progress"]


def other_version(folder: Path, settings: tuple[str, ...]) -> BadCheckpoint:
    """The error for a checkpoint whose content this version does not know."""
    problem = f"The checkpoint in {folder} was made by another version of crodobo."
    return BadCheckpoint(problem, "Start over.", settings=settings)


def delete_checkpoint(folder: Path) -> bool:
    """Delete the folder's checkpoint. Returns whether there was one."""
    path = folder / NAME
    existed = path.exists()
    path.unlink(missing_ok=True)
    unfinished_name(path).unlink(missing_ok=True)
    return existed


def differences(stored: dict[str, Any], given: dict[str, Any]) -> str:
    """The settings in which two sessions differ, for people."""
    there, here = _flatten(stored), _flatten(given)
    changed = [name for name in sorted(there | here) if there.get(name) != here.get(name)]
    return ", ".join(f"{name} is {there.get(name)} there and {here.get(name)} here" for name in changed)


def _flatten(settings: dict[str, Any]) -> dict[str, Any]:
    groups = {name: settings.get(name) or {} for name in ("options", "data")}
    return settings | groups["options"] | groups["data"] | dict.fromkeys(groups)
