"""Tensors in one safetensors file with a JSON header: the format of checkpoints, warm starts and models."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crodobo.storage.files import write_atomically

HEADER = "crodobo"


class UnreadableTensors(Exception):
    """The file is damaged, or was not written by `save_tensors`."""


def save_tensors(path: Path, tensors: dict[str, Tensor], header: dict[str, Any], *, private: bool = False) -> None:
    """Replace a file of tensors in one step. A `private` file is readable by its owner alone."""
    content = save({name: value.contiguous() for name, value in tensors.items()}, {HEADER: json.dumps(header)})
    write_atomically(path, content, private=private)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and header. Raises `UnreadableTensors` for any file that is not one of ours."""
    with _opened(path) as (file, header):
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118


def load_header(path: Path) -> dict[str, Any]:
    """Read only the header. Raises `UnreadableTensors` for any file that is not one of ours."""
    with _opened(path) as (_, header):
        return header


def with_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def numbered(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of several learners under one name each: `learners.0.NAME`."""
    return {f"learners.{number}.{name}": value for number, state in enumerate(states) for name, value in state.items()}


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[HEADER])
            if not isinstance(header, dict):
                raise ValueError("the header is not an object")
            yield file, header
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UnreadableTensors(str(error)) from error
