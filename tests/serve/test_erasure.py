"""A strict service over real connections: it predicts like a run, and keeps nothing of any request in memory."""

import csv
import http.client
import io
import json
import os
import re
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from crodobo.burn.canary import Canary, Needle
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Find, scan
from crodobo.data import load_benchmark

if TYPE_CHECKING:
    from conftest import Authority

Crodobo = Callable[..., tuple[int, str, str]]
SHORT = ("--warmup", "2", "--query-size", "16", "--set", "warmup_batch=8")
CANARY, SAMPLES, SIDE = Canary("a test"), 8, 32
PIXELS = np.broadcast_to(np.frombuffer(CANARY.row(SIDE), np.uint8), (SAMPLES, 1, SIDE, SIDE)).copy()
UNIT = (PIXELS / np.float32(255)).astype(np.float32)
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the memory of a hardened process")
INFER, PREDICT, RAW = "/v2/models/crodobo/infer", "/v1/predict", "application/octet-stream"


class Sent(NamedTuple):
    """A request and its expected status."""

    path: str
    body: bytes
    headers: dict[str, str]
    status: int = 200


class Served(NamedTuple):
    process: subprocess.Popen[str]
    port: int
    trusted: ssl.SSLContext | None = None

    def connect(self) -> http.client.HTTPConnection:
        if self.trusted:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=self.trusted)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)


def ask(connection: http.client.HTTPConnection, sent: Sent) -> tuple[int, bytes]:
    key = {"Idempotency-Key": uuid.uuid4().hex}  # so the answer is kept, and nothing of the images
    connection.request("POST", sent.path, sent.body, sent.headers | key)
    response = connection.getresponse()
    return response.status, response.read()


@contextmanager
def strict_service(state: Path, *options: str, trusted: ssl.SSLContext | None = None) -> Iterator[Served]:
    """A service with default settings. At the end it must stop in order."""
    command = [sys.executable, "-m", "crodobo", "serve", "--port", "0", "--state", str(state), *SHORT, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        found = next((match for line in lines if (match := re.search(r"istening on \S+:(\d+)", line))), None)
        assert found, process.communicate()
        service = Served(process, int(found[1]), trusted)
        for _ in range(600):
            assert process.poll() is None, process.communicate()[0]
            with suppress(OSError), closing(service.connect()) as connection:
                connection.request("GET", "/v2/health/ready")
                if connection.getresponse().status == 200:
                    break
            time.sleep(0.1)
        yield service
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert re.search("burn proof: .*nothing", out, re.IGNORECASE)
        assert out.splitlines()[-1].lower().startswith("stopped in order after ")
    finally:
        process.kill()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with strict_service(tmp_path_factory.mktemp("served")) as service:
        yield service


def tensor(
    values: np.ndarray, *, binary: bool, samples: int | None = None, cut: int = 0
) -> tuple[bytes, dict[str, str]]:
    """An inference request in JSON, or in JSON and bytes."""
    kind = "UINT8" if values.dtype == np.uint8 else "FP32"
    shape = [samples or len(values), *values.shape[1:]]
    described: dict[str, Any] = {"name": "images", "shape": shape, "datatype": kind}
    if not binary:
        described["data"] = values.tolist()
        text = json.dumps({"inputs": [described]}).encode()
        return text[: len(text) - cut], {"Content-Type": "application/json"}
    described["parameters"] = {"binary_data_size": values.nbytes}
    header = json.dumps({"inputs": [described]}).encode()
    return header + values.tobytes(), {"Inference-Header-Content-Length": str(len(header))}


def saved(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def of_type(name: str) -> dict[str, str]:
    return {"Content-Type": name}


NAME = secrets.token_hex(12)  # in a header of every request
FILE = CANARY.encoded((1, SIDE, SIDE))
FORM = b"".join(b"--x\r\nContent-Disposition: form-data\r\n\r\n" + FILE + b"\r\n" for _ in range(4)) + b"--x--\r\n"
WIDE = io.BytesIO()  # of less than 1,024 pixels: numpy caches small arrays
Image.fromarray(PIXELS[0, 0, :30].astype(np.uint16) * 257).save(WIDE, "PNG")
REQUESTS = {
    "JSON": Sent(INFER, *tensor(PIXELS, binary=False)),
    "JSON floats": Sent(INFER, *tensor(UNIT, binary=False)),
    "binary": Sent(INFER, *tensor(PIXELS, binary=True)),
    "binary floats": Sent(INFER, *tensor(UNIT, binary=True)),
    "an image": Sent(PREDICT, FILE, of_type("image/x-portable-anymap")),
    "an image of sixteen bits": Sent(PREDICT, WIDE.getvalue(), of_type("image/png")),
    "images": Sent(PREDICT, FORM, of_type("multipart/form-data; boundary=x")),
    "an array": Sent(PREDICT, saved(PIXELS), of_type("application/x-npy")),
    "an array of floats": Sent(PREDICT, saved(UNIT), of_type("application/x-npy")),
    "raw": Sent(f"{PREDICT}?adapt=false", PIXELS.tobytes(), of_type("application/octet-stream")),
    "torn JSON": Sent(INFER, *tensor(PIXELS, binary=False, cut=1), 400),
    "another shape": Sent(INFER, *tensor(PIXELS, binary=True, samples=9), 400),
    "a torn image": Sent(PREDICT, FILE[:-200], of_type("image/x-portable-anymap"), 400),
    "a torn form": Sent(PREDICT, FORM[:-9], of_type("multipart/form-data; boundary=x"), 400),
    "an unknown type": Sent(PREDICT, FILE, of_type("text/plain"), 415),
    "out of range": Sent(INFER, *tensor(UNIT * 3, binary=True), 400),
    "an unknown model": Sent("/v2/models/other/infer", *tensor(PIXELS, binary=True), 404),
}


def needles() -> list[Needle]:
    """The canary as a network, numpy, Python and JSON represent it."""
    found = CANARY.needles(1, [0.5], [0.5])
    for values in (CANARY.values, CANARY.values[::-1]):
        period = np.frombuffer(values + values[::-1], np.uint8)
        unit = (period / np.float32(255)).astype(np.float32)
        found += [
            Needle(period.astype(np.int64).tobytes(), "integers"),
            Needle(unit.astype(float).tobytes(), "doubles"),
        ]
        found += [Needle(", ".join(map(str, numbers.tolist())).encode(), "text") for numbers in (period, unit)]
    return found


def test_a_new_service_predicts_a_stream_like_a_run(tmp_path: Path, crodobo: Crodobo) -> None:
    assert crodobo("run", "--queries", "4", *SHORT, "--out", tmp_path / "run", "-q")[0] == 0
    expected = list(csv.DictReader((tmp_path / "run" / "predictions.csv").read_text().splitlines()))
    benchmark, got = load_benchmark("glyphs"), []
    with strict_service(tmp_path / "service") as served, closing(served.connect()) as connection:
        for number, indices in enumerate(benchmark.order(0)[: 4 * 16].split(16)):
            body, headers = tensor(benchmark.images[indices].numpy(), binary=number % 2 == 0)
            status, content = ask(connection, Sent(INFER, body, headers))
            assert status == 200
            outputs = {output["name"]: output["data"] for output in json.loads(content)["outputs"]}
            got += list(zip(outputs["labels"], outputs["confidence"], strict=True))
    names = benchmark.source.classes
    assert [(label, f"{sure:.6f}") for label, sure in got] == [
        (names[int(row["predicted"])], row["confidence"]) for row in expected
    ]


@root
def test_no_request_is_left_in_memory_while_connections_are_open(served: Served) -> None:
    assert traces_of_all_requests(served, times=2) == []


@root
def test_no_encrypted_request_is_left_in_memory(authority: "Authority", tmp_path: Path) -> None:
    certificate, private = map(str, authority.issue("strict"))
    trusted = ssl.create_default_context(cafile=authority.certificate)
    with strict_service(tmp_path, "--tls-cert", certificate, "--tls-key", private, trusted=trusted) as served:
        assert traces_of_all_requests(served, times=1) == []


def traces_of_all_requests(served: Served, times: int) -> list[Find]:
    """Traces in the service's memory after it has answered each request on a connection that is still open."""
    with ExitStack() as stack:
        connections = {name: stack.enter_context(closing(served.connect())) for name in REQUESTS}
        for _ in range(times):
            for name, sent in REQUESTS.items():
                status, content = ask(connections[name], sent._replace(headers=sent.headers | {"X-Name": NAME}))
                assert (name, status) == (name, sent.status), content
                if status == 200:
                    facts = json.loads(content)
                    receipt = facts.get("receipt") or facts["parameters"]["receipt"]
                    assert len(bytes.fromhex(receipt)) == 16
        memory = stack.enter_context(closing(ProcessMemory.of(served.process.pid)))
        found = scan(memory, [*needles(), Needle(NAME.encode(), "a header")])
    assert found.scanned > 10**8
    assert found.unreadable == []
    return found.finds


@root
def test_a_body_that_is_still_arriving_is_in_locked_memory_only(served: Served) -> None:
    head = f"POST {PREDICT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {RAW}\r\n"
    head += f"Content-Length: {PIXELS.nbytes}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as client:
        client.sendall(head.encode() + PIXELS.tobytes()[:3000])
        time.sleep(1)
        client.sendall(PIXELS.tobytes()[3000:5000])
        time.sleep(1)
        with closing(ProcessMemory.of(served.process.pid)) as memory:
            found = scan(memory, needles())
        locked = locked_memory(served.process.pid)
    assert sum(find.bytes for find in found.finds) > 4000
    assert [find for find in found.finds if not any(start <= find.address < end for start, end in locked)] == []


def locked_memory(process: int) -> list[tuple[int, int]]:
    """The regions of a process that cannot be swapped out."""
    regions, locked = (0, 0), []
    for line in Path(f"/proc/{process}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            regions = start, end
        elif first == "VmFlags:" and "lo" in line.split():
            locked.append(regions)
    return locked
