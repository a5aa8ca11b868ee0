"""Several clients of one service: none sees the figures of another, and none can take the places of all."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from crodobo.serve.clients import MAX_CLIENTS, Clients
from crodobo.serve.keys import Caller, add_key

if TYPE_CHECKING:
    from conftest import Serve, Served

SIZE = 8  # samples per query
QUEUE = 6
RAW = "application/octet-stream"


class Shared:
    """A service with an administrator and two clients, and requests to it."""

    def __init__(self, served: "Served", keys: dict[str, str]) -> None:
        self.served, self.keys = served, keys

    def ask(self, method: str, path: str, name: str, body: bytes = b"", kind: str = RAW) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {self.keys[name]}", "Content_Type": kind}
        status, _, content = self.served.ask(method, path, body, **headers)
        return status, content

    def predict(self, name: str, samples: int = SIZE, seed: int = 0) -> dict[str, Any]:
        status, content = self.ask("POST", "/v1/predict", name, self.served.images(samples, seed).tobytes())
        assert status == 200, content
        found: dict[str, Any] = json.loads(content)
        return found

    def event(self, name: str) -> dict[str, Any]:
        """The first event that the owner of a key receives."""
        with socket.create_connection(("127.0.0.1", self.served.port), timeout=30) as made:
            made.sendall(f"GET /events HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {self.keys[name]}\r\n\r\n".encode())
            with made.makefile("rb") as lines:
                found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith(b"data:"))[5:])
                return found

    def metrics(self, name: str) -> str:
        return self.ask("GET", "/metrics", name)[1].decode()

    def begin(self, name: str, length: int) -> socket.socket:
        """A request whose body does not arrive."""
        made = socket.create_connection(("127.0.0.1", self.served.port), timeout=30)
        head = f"POST /v1/predict HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {self.keys[name]}\r\nContent-Type: {RAW}"
        made.sendall(f"{head}\r\nContent-Length: {length}\r\n\r\nx".encode())
        return made

    def active(self) -> int:
        found = re.search(r"^crodobo_queue_requests (\S+)$", self.metrics("admin"), re.MULTILINE)
        assert found
        return int(float(found[1]))


def read(made: socket.socket) -> bytes:
    """The response to a request that is refused. The service closes the connection, because no body arrives."""
    with made.makefile("rb") as file:
        return file.read()


@pytest.fixture(scope="module")
def shared(serve: "Serve", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("clients")
    file = folder / "keys.json"
    keys = {name: add_key(file, name, "admin" if name == "admin" else "client") for name in ("admin", "shop", "ward")}
    options = ("--keys", str(file), "--deadline", "20", "--plain")
    with serve(folder / "state", *options) as served:
        yield Shared(served, keys)


# Figures


def test_a_client_sees_its_own_figures_only(shared: Shared) -> None:
    before = shared.event("shop")["totals"]
    receipts = {name: shared.predict(name)["receipt"] for name in ("shop", "ward")}
    seen = {name: shared.event(name) for name in ("shop", "ward", "admin")}
    found = {name: {point["receipt"] for point in event["points"]} for name, event in seen.items()}
    assert receipts["shop"] in found["shop"] - found["ward"]
    assert receipts["ward"] in found["ward"] - found["shop"]
    assert found["admin"] >= set(receipts.values())
    assert seen["shop"]["totals"]["queries"] == before["queries"] + 1
    assert seen["shop"]["totals"]["samples"] == before["samples"] + SIZE
    private = {"last_query", "met", "kept_states", "rollback", "queue", "failure"}
    assert not private & seen["shop"].keys()
    assert private <= seen["admin"].keys()


def test_the_metrics_of_a_client_are_those_of_its_own_requests(shared: Shared) -> None:
    before = shared.metrics("ward")
    shared.predict("shop")
    after = shared.metrics("ward")
    assert [line for line in after.splitlines() if "crodobo_requests_total{" not in line] == [
        line for line in before.splitlines() if "crodobo_requests_total{" not in line
    ]
    for name in ("predicted_share", "confidence", "entropy", "drift", "seconds", "estimated"):
        assert f"crodobo_{name}" not in after
        assert name == "estimated" or f"crodobo_{name}" in shared.metrics("admin")


def test_the_figures_of_a_shared_query_are_those_of_the_own_images(shared: Shared) -> None:
    answers: dict[str, dict[str, Any]] = {}
    asked = {"shop": 3, "ward": 5}  # together they fill a query

    def ask(name: str) -> None:
        answers[name] = shared.predict(name, asked[name], seed=asked[name])

    threads = [threading.Thread(target=ask, args=(name,)) for name in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers["shop"]["receipt"] == answers["ward"]["receipt"]
    for name, samples in asked.items():
        assert answers[name]["samples"] == samples
        assert "agreement" not in answers[name]
        point = shared.event(name)["points"][-1]
        confidence = np.mean([row["confidence"] for row in answers[name]["predictions"]])
        assert (point["query"], point["samples"]) == (answers[name]["query"], samples)
        assert point["confidence"] == pytest.approx(confidence, abs=1e-3)
        assert (point["agreement"], point["kept"]) == (None, None)
    assert "agreement" in shared.predict("shop"), "nobody else has images in this query"


def test_a_new_key_of_the_same_name_sees_nothing_of_the_old_one() -> None:
    clients = Clients()
    clients.of(Caller("shop", "client", fingerprint="old")).requests[200] += 1
    assert not clients.of(Caller("shop", "client", fingerprint="new")).requests


def test_only_so_many_clients_are_remembered() -> None:
    clients = Clients()
    for number in range(MAX_CLIENTS + 1):
        clients.of(Caller(f"client{number}", "client")).requests[200] += 1
    assert clients.of(Caller(f"client{MAX_CLIENTS}", "client")).requests[200] == 1
    assert clients.of(Caller("client0", "client")).requests[200] == 0


# Fair shares


def test_a_client_with_stalled_bodies_leaves_places_for_others(shared: Shared) -> None:
    stalled = [shared.begin("shop", 200) for _ in range(QUEUE)]
    try:
        refused = [read(made) for made in stalled[QUEUE // 2 :]]
        assert all(answer.startswith(b"HTTP/1.1 429 ") for answer in refused)
        assert all(b"This key has too many requests at once." in answer for answer in refused)
        assert shared.active() == QUEUE // 2
        assert shared.predict("ward")["samples"] == SIZE
    finally:
        for made in stalled:
            made.close()
    shared.served.wait_until(lambda: shared.active() == 0)


def test_a_client_with_large_bodies_leaves_memory_for_others(shared: Shared) -> None:
    large = [shared.begin("shop", 64 * 2**20) for _ in range(2)]  # of four that fit
    try:
        shared.served.wait_until(lambda: shared.active() == 2)
        large.append(shared.begin("shop", 63 * 2**20))
        assert b"This key has too many large bodies at once." in read(large[-1])
        assert shared.ask("POST", "/v1/predict", "ward", bytes(2**21))[0] == 413  # too many images, not too many bytes
    finally:
        for made in large:
            made.close()
    shared.served.wait_until(lambda: shared.active() == 0)
