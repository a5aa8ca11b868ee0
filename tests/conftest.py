"""What all tests share."""

import contextlib
import io
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from crodobo.cli.main import main
from crodobo.core.source import Source

Crodobo = Callable[..., tuple[int, str, str]]

settings.register_profile("crodobo", max_examples=25, deadline=None, derandomize=True, database=None)
settings.load_profile("crodobo")


def pytest_configure() -> None:
    """Remove settings that this machine's user has in the environment."""
    for variable in [name for name in os.environ if name.startswith("CRODOBO_")]:
        del os.environ[variable]


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def source() -> Source:
    """40 noisy images of 1×16×16 in four classes, each with another quarter lit; easy to learn."""
    random = torch.Generator().manual_seed(7)
    labels = torch.arange(40) % 4
    images = torch.rand(40, 1, 16, 16, generator=random) * 0.3
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[:, top : top + 8, left : left + 8] += 0.6
    return Source(images, labels)


@pytest.fixture(scope="session")
def crodobo() -> Crodobo:
    """Run a command in this process; its status and what it printed."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        out, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            # Strict burning, adapt's default, would start this very process again.
            level = ("--burn", "standard") if arguments[0] == "adapt" and "--burn" not in arguments else ()
            patch.setattr(sys, "argv", ["crodobo", *map(str, arguments), *level])
            patch.setenv("COLUMNS", "100")
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(errors),
                pytest.raises(SystemExit) as end,
            ):
                main()
        return int(end.value.code or 0), out.getvalue(), errors.getvalue()

    return call


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The same command for a process of its own."""
    return lambda *arguments: [sys.executable, "-m", "crodobo", *map(str, arguments)]


class Served(NamedTuple):
    """A service that was started, and may not be ready yet."""

    url: str
    port: int
    state: Path
    process: ForkServerProcess


def unused_port() -> int:
    """A port on which nothing listens.

    The kernel gives ports from 32768 up to outgoing connections. A lower one stays free until the service takes it.
    """
    while True:
        port = 10_000 + secrets.randbelow(20_000)  # pytest-randomly gives all workers the same seed
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    return unused_port


def installed(*names: str) -> str:
    """The path of a program that has one of these names; without it the test is skipped, but in CI it fails."""
    for name in names:
        if path := shutil.which(name):
            return path
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(f"{names[0]} is not installed; .ci/run installs it")
    pytest.skip(f"{names[0]} is not installed")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a browser."""
    return installed("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromedriver() -> str:
    """The path of the program through which Selenium drives the browser."""
    return installed("chromedriver")


@pytest.fixture(scope="session")
def start_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Start `crodobo serve` with a tiny model, cats and dogs of 1×16×16 in queries of 8, in a process of its own."""
    public = tmp_path_factory.mktemp("public")
    for number in range(16):
        path = public / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crodobo.inbox.adapt", "crodobo.serve.server"])
    model = ["--source", public, "--image-size", 16, "--grey", "--query-size", 8, "--warmup", 1]
    started: list[Served] = []

    def start(*options: str | Path | int) -> Served:
        port, state = unused_port(), tmp_path_factory.mktemp("served")
        usual = ["serve", "--burn", "standard", "--threads", 1, "--port", port, "--state", state, "--quiet"]
        process = context.Process(target=main)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["crodobo", *map(str, [*usual, *model, "--set", "warmup_batch=8", *options])])
            process.start()
        scheme = "https" if "--tls-cert" in options else "http"
        started.append(Served(f"{scheme}://127.0.0.1:{port}", port, state, process))
        return started[-1]

    yield start
    for served in started:
        if served.process.is_alive():
            os.kill(served.process.pid or 0, signal.SIGTERM)
    for served in started:
        served.process.join(30)
