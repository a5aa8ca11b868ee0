"""What tests of the service share: a real one, in a process of its own."""

import contextlib
import http.client
import json
import os
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

SIZE = 8  # samples of a query; so many images at once do not wait for others
# Room for few, so that it is soon full; a long wait for others, so that one who sends a single image can go away.
OPTIONS = ("--queue", "6", "--deadline", "4", "--max-wait", "1")


@dataclass
class Served:
    """A service that runs, or has run."""

    process: subprocess.Popen[str]
    port: int
    state: Path
    shape: tuple[int, ...] = (1, 16, 16)

    def ask(
        self, method: str, path: str, body: bytes = b"", timeout: float = 30, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body or None, {name.replace("_", "-"): v for name, v in headers.items()})
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def predict(self, images: np.ndarray, path: str = "/v1/predict", timeout: float = 30) -> tuple[int, dict[str, Any]]:
        """What is said of pixels."""
        status, _, content = self.ask("POST", path, images.tobytes(), timeout, Content_Type="application/octet-stream")
        return status, json.loads(content)

    def images(self, samples: int = SIZE, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(0, 256, (samples, *self.shape), dtype=np.uint8)

    def metric(self, name: str) -> float:
        """A number of the service, as Prometheus would read it."""
        text = self.ask("GET", "/metrics")[2].decode()
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(f"{name} ")))

    def begin(self, path: str, length: int, part: bytes = b"x", method: str = "POST") -> socket.socket:
        """A request whose body has only begun to come."""
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
    """A dozen labelled pictures, which take no time to learn."""
    folder = tmp_path_factory.mktemp("public")
    for number in range(12):
        path = folder / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


Serve = Callable[..., contextlib.AbstractContextManager[Served]]


@pytest.fixture(scope="session")
def serve(public: Path, free_port: Callable[[], int], tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Start a service; it is ready when the block begins, and gone when it ends."""
    cache = tmp_path_factory.mktemp("cache")

    @contextlib.contextmanager
    def start(state: Path, *options: str) -> Iterator[Served]:
        port = free_port()
        arguments = ["serve", "--source", public, "--burn", "standard", "--warmup", "1", "--query-size", SIZE]
        arguments += ["--image-size", "16", "--grey", *OPTIONS]
        arguments += ["--sequence", "--threads", "1", "--state", state, "--port", port, "--quiet", *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "crodobo", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"CRODOBO_CACHE": str(cache)},
        )
        served = Served(process, port, state)
        try:
            served.wait_until(served.is_ready)
            yield served
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    return start


@pytest.fixture(scope="session")
def house(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Served]]:
    """The service that tests share, started again if one has ended it: starting takes seconds."""
    with contextlib.ExitStack() as stack:
        served: list[Served] = []

        def get() -> Served:
            if not served or served[-1].process.poll() is not None:
                served.append(stack.enter_context(serve(tmp_path_factory.mktemp("state"))))
            return served[-1]

        yield get


@pytest.fixture
def server(house: Callable[[], Served]) -> Served:
    return house()


class Authority:
    """Makes certificates for tests."""

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
        """A certificate and its key."""
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
