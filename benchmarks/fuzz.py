"""Thousands of malformed requests: none may stop the service, get a 5xx, or change a weight.

    python benchmarks/fuzz.py [--requests 5000] [--generated 1000] [--seed 0] [--burn standard]

Some are generated from the OpenAPI document (schemathesis). The others are requests with a binary tensor whose JSON,
lengths or bytes were corrupted. A request that is still valid is answered, and changes the expected weights. Prints the
number of responses by status, and fails if a target is missed.
"""

import argparse
import contextlib
import copy
import hashlib
import http.client
import json
import random
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from crodobo.session.checkpoint import NAME
from serving import Serving, serving

INFER = "/v2/models/crodobo/infer"
LENGTH = "Inference-Header-Content-Length"
ODD: list[Any] = [
    *(None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 2**64, 10**400, -(2**63), 1e308, float("nan"), float("inf")),
    *("", "0", "images", "\0", "\ud800", "é" * 1000, "A" * 100_000, [], {}, [[]], [None], [0] * 1000, {"": {}}),
    *([1, 1, 32, 32], [-1, 1, 32, 32], [2**31, 1, 32, 32], [[1], 1, 32, 32], "UINT8", "FP32", "FP64", "BYTES"),
]
Request = tuple[dict[str, str], bytes]


class Fuzzer:
    """Makes corrupted requests."""

    def __init__(self, shape: list[int], seed: int) -> None:
        self.shape, self.random = shape, random.Random(seed)

    def parts(self) -> tuple[dict[str, Any], bytes]:
        """The JSON and the bytes of a valid request."""
        samples = self.random.randint(1, 3)
        count = samples * self.shape[0] * self.shape[1] * self.shape[2]
        kind, code = self.random.choice([("UINT8", "B"), ("FP32", "f"), ("FP64", "d")])
        values = [self.random.randrange(256) if code == "B" else self.random.random() for _ in range(count)]
        content = struct.pack(f"<{count}{code}", *values)
        tensor: dict[str, Any] = {"name": "images", "shape": [samples, *self.shape], "datatype": kind}
        tensor["parameters"] = {"binary_data_size": len(content)}
        return {"id": "7", "inputs": [tensor], "outputs": [{"name": "labels"}]}, content

    def request(self) -> Request:
        ways: list[Callable[[], Request]] = [self.value] * 3 + [self.text] * 2
        return self.random.choice([*ways, self.length, self.size, self.cut, self.pixels])()

    def packed(self, header: bytes, content: bytes, length: str | None = None) -> Request:
        return {LENGTH: str(len(header)) if length is None else length}, header + content

    def value(self) -> Request:
        """Replace or delete a value in the JSON."""
        asked, content = self.parts()
        places: list[tuple[Any, Any]] = []

        def walk(value: Any) -> None:
            for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                places.append((value, key))
                walk(value[key])

        walk(asked)
        held, key = self.random.choice(places)
        if self.random.random() < 0.2:
            del held[key]
        else:
            held[key] = copy.deepcopy(self.random.choice(ODD))  # so that ODD itself stays unchanged
        if self.random.random() < 0.3:  # send numbers in the JSON instead of bytes
            with contextlib.suppress(LookupError, TypeError, AttributeError):  # the replaced value may be this one
                asked["inputs"][0].pop("parameters", None)
                asked["inputs"][0]["data"] = self.random.choice([*ODD, list(content), [list(content)]])
                content = b""
        return self.packed(json.dumps(asked).encode(), content)

    def text(self) -> Request:
        """Change, delete, insert or repeat bytes of the JSON."""
        asked, content = self.parts()
        header = bytearray(json.dumps(asked).encode())
        for _ in range(self.random.randint(1, 8)):
            place, other = self.random.randrange(len(header)), self.random.randrange(len(header))
            way = self.random.randrange(5)
            if way == 0:
                header[place] ^= 1 << self.random.randrange(8)
            elif way == 1:
                del header[place : place + self.random.randint(1, 20)]
            elif way == 2:
                header[place:place] = self.random.randbytes(self.random.randint(1, 8))
            elif way == 3:
                header[place:place] = header[other : other + 30]
            else:
                header[place:place] = self.random.choice(
                    [b"[" * 5000, b'{"a":' * 2000, b"9" * 5000, b"\xff\xfe", b"//"]
                )
            header = header or bytearray(b" ")
        return self.packed(bytes(header), content)

    def length(self) -> Request:
        """Give a wrong length of the JSON."""
        asked, content = self.parts()
        header = json.dumps(asked).encode()
        near = str(len(header) + self.random.choice([-20, -2, -1, 1, 2, 20, 10**6]))
        odd = ["", "-1", "0", "0x10", "1e3", " ", "9" * 15, "9" * 16, "9" * 400, "\xb2", "12,13", "None"]
        return self.packed(header, content, self.random.choice([near, *odd]))

    def size(self) -> Request:
        """Give a wrong number of bytes."""
        asked, content = self.parts()
        near = len(content) + self.random.choice([-len(content), -8, -1, 1, 8, 2**32, 2**64])
        asked["inputs"][0]["parameters"]["binary_data_size"] = self.random.choice([near, *ODD])
        return self.packed(json.dumps(asked).encode(), content)

    def cut(self) -> Request:
        """Cut bytes off, or add one."""
        asked, content = self.parts()
        content = content[: self.random.randrange(len(content))] if self.random.random() < 0.5 else content + b"\0"
        return self.packed(json.dumps(asked).encode(), content)

    def pixels(self) -> Request:
        """Send invalid pixels: outside 0 to 1, infinite or NaN."""
        asked, _ = self.parts()
        asked["inputs"][0]["datatype"] = "FP32"
        bad = self.random.choice([-1.0, 1.001, 255.0, 3e38, float("inf"), float("-inf"), float("nan")])
        count = asked["inputs"][0]["shape"][0] * self.shape[0] * self.shape[1] * self.shape[2]
        values = [0.5] * count
        values[self.random.randrange(count)] = bad
        asked["inputs"][0]["parameters"]["binary_data_size"] = 4 * count
        return self.packed(json.dumps(asked).encode(), struct.pack(f"<{count}f", *values))


class Watch:
    """Counts statuses, and checks that only answered requests change the weights."""

    def __init__(self, served: Serving) -> None:
        self.served, self.statuses, self.failures = served, Counter[str](), list[str]()
        self.answered, self.before, self.weights = 0, served.answered(), self.digest()

    def digest(self) -> str:
        """The hash of the learners' state."""
        status, content = self.served.ask("POST", "/admin/checkpoint")
        if status != 200:
            sys.exit(f"The checkpoint was not written: {content!r}")
        digest = hashlib.sha256()
        with safe_open(self.served.state / NAME, framework="np") as file:
            for name in sorted(file.keys()):
                digest.update(name.encode() + file.get_tensor(name).tobytes())
        return digest.hexdigest()

    def saw(self, status: int, is_query: bool, content: bytes, what: str) -> None:
        self.statuses[str(status)] += 1
        if status >= 500:
            self.failures.append(f"{status} for {what[:300]}")
        elif status >= 400 and not content.startswith((b'{"error":', b"Invalid HTTP")):
            self.failures.append(f"{status} without an error text for {what[:300]}")
        if is_query and status == 200:
            self.answered += 1
            self.weights = self.digest()

    def check(self, when: str) -> None:
        """Check the number of queries, and that the weights are those after the last answer."""
        if self.served.answered() != self.before + self.answered:
            self.failures.append(f"queries were learned but not answered, {when}")
        if self.digest() != self.weights:
            self.failures.append(f"weights have changed, {when}")


def send_corrupted(served: Serving, fuzzer: Fuzzer, watch: Watch, requests: int) -> None:
    """Send corrupted requests until this many requests have been refused in all."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    number = 0
    while sum(watch.statuses.values()) - watch.answered < requests:
        number += 1
        headers, body = fuzzer.request()
        try:
            connection.request("POST", INFER, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            watch.statuses[type(error).__name__] += 1
            watch.failures.append(f"no answer ({error!r}) to {body[:200]!r}")
            continue
        watch.saw(answer.status, True, content, f"{headers} {body[:200]!r}")
        if number % 500 == 0:
            watch.check(f"after {number} corrupted requests")
    connection.close()


def send_truncated(served: Serving, fuzzer: Fuzzer, watch: Watch, requests: int) -> None:
    """Send invalid HTTP, and bodies that end too soon."""
    for _ in range(requests):
        headers, body = fuzzer.request()
        head = f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Content-Length: {len(body) + 10}\r\n{LENGTH}: {headers[LENGTH]}"
        sent = bytearray(head.encode("latin-1") + b"\r\n\r\n" + body)
        for _ in range(fuzzer.random.randint(0, 3)):
            sent[fuzzer.random.randrange(150)] = fuzzer.random.randrange(256)
        with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
            content = b""
            with contextlib.suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65536):
                    content += part
        status = content[9:12].decode() if content.startswith(b"HTTP/1.1 ") else "closed"
        watch.statuses[status] += 1
        if status.startswith("5"):
            watch.failures.append(f"{status} for {bytes(sent[:300])!r}")
    watch.check("after truncated requests")


def send_generated(served: Serving, watch: Watch, requests: int, seed: int) -> None:
    """Send valid and invalid requests that schemathesis generates from the OpenAPI document."""
    import hypothesis
    import schemathesis

    document = schemathesis.openapi.from_url(f"{served.url}/openapi.json")
    paths = ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer", "/v1/predict", "/admin/{action}")
    wrong, right = schemathesis.GenerationMode.NEGATIVE, schemathesis.GenerationMode.POSITIVE
    plan = [(path, wrong) for path in paths] + [(path, right) for path in paths[:2]]
    for number, (path, mode) in enumerate(plan):

        @hypothesis.seed(seed + number)
        @hypothesis.settings(
            max_examples=requests // len(plan),
            database=None,
            deadline=None,
            phases=[hypothesis.Phase.generate],
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much],
        )
        @hypothesis.given(case=document[path]["POST"].as_strategy(generation_mode=mode))
        def send(case: Any) -> None:
            fixed = {"name": "crodobo", "version": "1"}
            for name in fixed.keys() & (case.path_parameters or {}).keys():
                case.path_parameters[name] = fixed[name]
            answer = case.call(timeout=60)
            is_query = case.path.endswith(("infer", "predict"))
            watch.saw(
                answer.status_code, is_query, answer.content, f"{case.method} {case.formatted_path} {case.body!r}"
            )

        send()
        watch.check(f"after {mode.value} requests to {path}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--generated", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--burn", default="standard")
    chosen = parser.parse_args()
    started = time.monotonic()
    options = ("--warmup", "1", "--burn", chosen.burn, "--max-wait", "0", "--rate", "0")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "state", *options) as served:
        fuzzer = Fuzzer(served.described()["inputs"][0]["shape"][1:], chosen.seed)
        watch = Watch(served)
        memory = served.memory()
        send_generated(served, watch, chosen.generated, chosen.seed)
        send_truncated(served, fuzzer, watch, chosen.requests // 10)
        send_corrupted(served, fuzzer, watch, chosen.requests)
        watch.check("at the end")
        alive = served.process.poll() is None and served.ask("GET", "/v2/health/ready")[0] == 200
        grown = served.memory() - memory
        traces = served.errors.read_text().count("Traceback")
    for status, count in sorted(watch.statuses.items()):
        print(f"{count:6}  {status}")
    print(
        f"{sum(watch.statuses.values()):6}  requests in {time.monotonic() - started:.0f} s; {grown:+.0f} MB of memory"
    )
    print(f"{watch.answered:6}  were valid, and were answered")
    for failure in watch.failures[:20]:
        print(failure)
    targets = {"the service is still ready": alive, "no failure": not watch.failures, "no traceback": not traces}
    for text, reached in targets.items():
        print(f"{'reached' if reached else 'MISSED '}  {text}")
    sys.exit(sum(not reached for reached in targets.values()))


if __name__ == "__main__":
    main()
