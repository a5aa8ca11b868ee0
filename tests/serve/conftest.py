"""Shared by the tests of the service: a real service in its own process, and a certificate authority."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from PIL import Image

SIZE = 8  # samples per query; a request with this many images does not wait for others
# Few requests at a time, so that it is soon full; a long wait, so that the client of a single image can disconnect.
OPTIONS = ("--queue", "6", "--deadline", "4", "--max-wait", "1")


@dataclass
class Served:
    """A service that is running, or was."""

    process: subprocess.Popen[str]
    port: int
    state: Path
    shape: tuple[int, ...] = (1, 16, 16)

    def ask(
        self, method: str, path: str, body: bytes = b"", timeout: float = 30, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body or None, {name.replace("_", "-"): v for name, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def predict(self, images: np.ndarray, path: str = "/v1/predict", timeout: float = 30) -> tuple[int, dict[str, Any]]:
        """Status and answer for raw pixels."""
        status, _, content = self.ask("POST", path, images.tobytes(), timeout, Content_Type="application/octet-stream")
        return status, json.loads(content)

    def images(self, samples: int = SIZE, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (samples, *self.shape), dtype=np.uint8)

    def metric(self, name: str, **headers: str) -> float:
        """A metric of the service."""
        text = self.ask("GET", "/metrics", **headers)[2].decode()
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def begin(self, path: str, length: int, part: bytes = b"x", method: str = "POST") -> socket.socket:
        """Send a request with only a part of its body."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + part)
        return connection

    def wait_until(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.02)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self.ask("GET", "/v2/health/ready")[0] == 200
        return False

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Status, output and errors after a signal."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, out, errors


@pytest.fixture(scope="session")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dozen labelled images, which take no time to learn."""
    folder = tmp_path_factory.mktemp("public")
    for number in range(12):
        path = folder / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


def read_port(process: subprocess.Popen[str]) -> int:
    """The port that a service says it listens on. The system chose it, so no other process can have taken it."""
    assert process.stdout
    for line in process.stdout:
        if found := re.search(r"listening on \S+:(\d+)", line, re.IGNORECASE):
            return int(found[1])
    raise AssertionError(process.communicate())


@pytest.fixture(scope="session")
def serve_command(public: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """The arguments of `Popen` for a service with this state and these options."""
    cache = tmp_path_factory.mktemp("cache")

    def command(state: Path, *options: str) -> dict[str, Any]:
        arguments = ["serve", "--source", public, "--burn", "standard", "--warmup", "1", "--query-size", SIZE]
        arguments += ["--image-size", "16", "--grey", *OPTIONS]
        arguments += ["--sequence", "--threads", "1", "--state", state, "--port", "0", *options]
        command = [sys.executable, "-m", "crodobo", *map(str, arguments)]
        return {"args": command, "env": os.environ | {"CRODOBO_CACHE": str(cache)}}

    return command


@pytest.fixture(scope="session", autouse=True)
def unblocked_signals() -> None:
    """Services inherit the signal mask, and one that blocks SIGTERM would never stop."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


Serve = Callable[..., contextlib.AbstractContextManager[Served]]


@pytest.fixture(scope="session")
def serve(serve_command: Callable[..., dict[str, Any]]) -> Serve:
    """Start a service that is ready when the block begins, and gone when it ends."""

    @contextlib.contextmanager
    def start(state: Path, *options: str) -> Iterator[Served]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(**serve_command(state, *options), **pipes, text=True)
        served = Served(process, read_port(process), state)
        try:
            served.wait_until(served.is_ready)
            yield served
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    return start


@pytest.fixture(scope="session")
def shared_service(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Served]]:
    """One service for all tests, because a start takes seconds. It is started again if a test has stopped it."""
    with contextlib.ExitStack() as stack:
        served: list[Served] = []

        def get() -> Served:
            if not served or served[-1].process.poll() is not None:
                served.append(stack.enter_context(serve(tmp_path_factory.mktemp("state"))))
            return served[-1]

        yield get


@pytest.fixture
def server(shared_service: Callable[[], Served]) -> Served:
    return shared_service()


class Authority:
    """A certificate authority."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"authority {folder.name}")])
        self.certificate = folder / "ca.pem"
        builder = self.builder(self.name, self.key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self.write(self.certificate, builder)

    def builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self.name, subject, key.public_key(), x509.random_serial_number())
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
        return builder.add_extension(identifier, critical=False).add_extension(authority, critical=False)

    def write(self, path: Path, builder: x509.CertificateBuilder) -> None:
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Make a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self.builder(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key)
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        self.write(self.folder / f"{name}.pem", builder.add_extension(here, critical=False))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (self.folder / f"{name}.key").write_bytes(private)
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))
