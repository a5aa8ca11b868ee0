"""Shared fixtures of the inbox tests: a tiny public source, and private images to put into an inbox."""

import csv
import importlib
import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crodobo.config import DataSettings
from crodobo.inbox import stream
from crodobo.inbox.settings import AdaptSettings
from crodobo.methods import get_method

Picture = Callable[..., bytes]
Put = Callable[..., Path]
Make = Callable[..., AdaptSettings]


def picture_of(number: int) -> bytes:
    """A noisy PNG of 16×16 pixels with one bright quarter, different for each number."""
    pixels = np.random.default_rng(number).integers(0, 80, (16, 16), dtype=np.uint8)
    top, left = 8 * (number // 2 % 2), 8 * (number % 2)
    pixels[top : top + 8, left : left + 8] += 150
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def picture() -> Picture:
    """Makes the content of an image file from a number."""
    return picture_of


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The labelled public images: a folder of class folders."""
    folder = tmp_path_factory.mktemp("public") / "source"
    for number in range(40):
        name = ("upper left", "upper right", "lower left", "lower right")[number % 4]
        path = folder / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture_of(10_000 + number))
    return folder


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


@pytest.fixture
def put(inbox: Path) -> Put:
    """Puts a file with an old time into the inbox and returns its path."""

    def call(name: str | bytes, content: bytes, age: float = 3600.0) -> Path:
        path = inbox / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (time.time() - age,) * 2)
        return path

    return call


@pytest.fixture
def make(tmp_path: Path, inbox: Path, public: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes the smallest settings for the inbox; keyword arguments override them."""
    monkeypatch.setenv("CRODOBO_CACHE", str(cache))

    def call(**others: Any) -> AdaptSettings:
        method = others.pop("method", "no-adaptation")
        options = get_method(method).Settings.of(**{"warmup": 0} | others.pop("options", {}))
        usual: dict[str, Any] = {
            "benchmark": "own",
            "inbox": inbox,
            "predictions": tmp_path / "out" / "predictions.csv",
            "state": tmp_path / "out" / "state",
            "quarantine": inbox / "quarantine",
            "data": DataSettings.of(source=public, grey=True),
            "image_size": 16,
            "query_size": 8,
            "shuffle": False,
        }
        return AdaptSettings.of(**usual | {"method": method, "options": options} | others)

    return call


@pytest.fixture(scope="session")
def rows_of() -> Callable[[Path], list[dict[str, str]]]:
    """Reads the rows of a file of predictions with the csv module."""

    def call(path: Path) -> list[dict[str, str]]:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file, strict=True))

    return call


@pytest.fixture(scope="session")
def module() -> ModuleType:
    """The module `crodobo.inbox.adapt`, for patching."""
    return importlib.import_module("crodobo.inbox.adapt")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which files are read or given up."""
    monkeypatch.setattr(stream, "SETTLE", 0.15)
    monkeypatch.setattr(stream, "PATIENCE", 0.6)
    monkeypatch.setattr(stream, "POLL", 0.05)
