"""A strict service over real connections: it predicts like a run, and keeps nothing of any request in memory."""

import csv
import http.client
import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

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
INFER, PREDICT = "/v2/models/crodobo/infer", "/v1/predict"


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
    connection.request("POST", sent.path, sent.body, sent.headers)
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


FILE = CANARY.encoded((1, SIDE, SIDE))
FORM = b"".join(b"--x\r\nContent-Disposition: form-data\r\n\r\n" + FILE + b"\r\n" for _ in range(4)) + b"--x--\r\n"
REQUESTS = {
    "JSON": Sent(INFER, *tensor(PIXELS, binary=False)),
    "JSON floats": Sent(INFER, *tensor(UNIT, binary=False)),
    "binary": Sent(INFER, *tensor(PIXELS, binary=True)),
    "binary floats": Sent(INFER, *tensor(UNIT, binary=True)),
    "an image": Sent(PREDICT, FILE, of_type("image/x-portable-anymap")),
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


def test_the_service_predicts_a_stream_like_a_run(served: Served, tmp_path: Path, crodobo: Crodobo) -> None:
    assert crodobo("run", "--queries", "4", *SHORT, "--out", tmp_path / "run", "-q")[0] == 0
    expected = list(csv.DictReader((tmp_path / "run" / "predictions.csv").read_text().splitlines()))
    benchmark, got = load_benchmark("glyphs"), []
    with closing(served.connect()) as connection:
        assert ask(connection, Sent("/admin/reset", b"", {}))[0] == 200  # other tests may have used the service before
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
                status, content = ask(connections[name], sent)
                assert (name, status) == (name, sent.status), content
                if status == 200:
                    facts = json.loads(content)
                    receipt = facts.get("receipt") or facts["parameters"]["receipt"]
                    assert len(bytes.fromhex(receipt)) == 16
        memory = stack.enter_context(closing(ProcessMemory.of(served.process.pid)))
        found = scan(memory, needles())
    assert found.scanned > 10**8
    assert found.unreadable == []
    return found.finds
