"""How the service stops: in order after a signal, at any moment by a kill, and at once if it cannot start."""

import json
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from safetensors import safe_open

from crodobo.audit.ledger import audit_ledger
from crodobo.errors import BadSettings
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.serve.server import Address, listen
from crodobo.session.checkpoint import NAME

if TYPE_CHECKING:
    from conftest import Serve, Served

Crodobo = Callable[..., tuple[int, str, str]]


def met(state: Path) -> int:
    """Queries that the checkpoint's learners have learned from."""
    with safe_open(state / NAME, framework="pt") as file:
        progress: dict[str, int] = json.loads(file.metadata()["crodobo"])["progress"]
    return progress["queries"]


def receipts(state: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (state / LEDGER).read_text().splitlines()]
    return [line for line in lines if line["kind"] == "query"]


def under_load(server: "Served", until: int) -> tuple[list[dict[str, Any]], threading.Event, ThreadPoolExecutor]:
    """Start clients that send requests without end. Returns when `until` requests are answered."""
    answers: list[dict[str, Any]] = []
    enough = threading.Event()

    def ask() -> None:
        while not enough.is_set():
            try:
                status, answer = server.predict(server.images())
            except (OSError, ValueError):  # cut off
                return
            if status == 200:
                answers.append(answer)

    clients = ThreadPoolExecutor(3)
    for _ in range(3):
        clients.submit(ask)
    server.wait_until(lambda: len(answers) >= until)
    return answers, enough, clients


def test_a_kill_loses_only_unanswered_requests_and_a_signal_stops_in_order(serve: "Serve", tmp_path: Path) -> None:
    """This is one test, because each start takes seconds."""
    # killed
    with serve(state := tmp_path / "state", "--plain") as server:  # small queries are learned too
        answers, enough, clients = under_load(server, until=12)
        server.end(signal.SIGKILL)
        enough.set()
        clients.shutdown()
    kept, last = met(state), receipts(state)[-1]["query"]
    ids = {receipt["id"] for receipt in receipts(state)}
    assert {answer["receipt"] for answer in answers} <= ids  # every answer has a receipt
    assert 10 <= kept <= last  # a checkpoint is written every ten queries
    assert audit_ledger(state / LEDGER, unclosed=True).sound
    assert not audit_ledger(state / LEDGER).sound

    # started again
    with serve(state, "--plain", "--checkpoint-every", "1") as again:
        assert again.predict(again.images())[1]["query"] == last + 1
        assert met(state) == kept + 1  # the checkpoint was written before the answer was sent

        # stopped while two requests wait for others, one is still being sent, and one client watches
        watching = again.begin("/events", 0, b"", method="GET")
        images = again.images(4)
        sending = again.begin("/v1/predict", images.nbytes, images.tobytes()[:10])
        with ThreadPoolExecutor(2) as few:
            waiting = [few.submit(again.predict, again.images(2, seed)) for seed in (1, 2)]
            again.wait_until(lambda: again.metric("crodobo_queue_requests") == 3)
            again.process.send_signal(signal.SIGTERM)
            sending.sendall(images.tobytes()[10:])
            assert [done.result()[0] for done in waiting] == [200, 200]
        assert sending.recv(65536).startswith(b"HTTP/1.1 200 ")
        status, out, errors = again.end()
        assert (status, errors) == (0, "")
        assert out.splitlines()[-1].lower().startswith("stopped in order after ")
        with pytest.raises(ConnectionRefusedError):
            again.ask("GET", "/v2/health/live")
        watching.close()
        sending.close()
    numbers = [receipt["query"] for receipt in receipts(state)]
    assert numbers == list(range(1, len(numbers) + 1))  # no number was used twice
    assert met(state) == kept + len(numbers) - last
    assert numbers[-1] > last + 1
    report = audit_ledger(state / LEDGER)
    assert report.sound, report.found


def test_idle_steps_end_for_the_next_request_for_a_signal_and_with_a_kill(serve: "Serve", tmp_path: Path) -> None:
    endless = ("--plain", "--idle-steps", "1000000")
    with serve(state := tmp_path / "state", *endless) as server:
        first = server.predict(server.images())[1]
        assert receipts(state) == []  # it goes on learning
        second = server.predict(server.images(seed=1))[1]
        assert [receipt["id"] for receipt in receipts(state)] == [first["receipt"]]
        server.end(signal.SIGKILL)
    report = audit_ledger(state / LEDGER, unclosed=True)
    assert report.sound, report.found
    assert any("query 2 was answered and has no receipt yet" in note for note in report.noted)
    with serve(state, *endless) as again:
        third = again.predict(again.images(seed=2))[1]
        assert third["query"] == second["query"] + 1
        assert again.end()[0] == 0
    assert receipts(state)[-1]["id"] == third["receipt"]
    report = audit_ledger(state / LEDGER)
    assert report.sound, report.found


def test_a_service_that_cannot_write_a_receipt_stops(server: "Served") -> None:
    (server.state / LEDGER).unlink()
    watching = server.begin("/events", 0, b"", method="GET")
    status, content = server.predict(server.images())
    assert (status, list(content)) == (500, ["error"])
    server.process.wait(30)
    status, _, errors = server.end()
    assert status == 2
    assert errors.count("\n") == 1
    assert "no query is processed without" in errors
    watching.close()


def test_a_damaged_checkpoint_stops_the_start_and_is_not_changed(
    crodobo: Crodobo, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / NAME).write_bytes(b"torn")
    model = ("--source", public, "--image-size", "16", "--burn", "standard", "--quiet")
    status, _, errors = crodobo("serve", *model, "--port", "0", "--state", tmp_path / "state")
    assert (status, errors.count("\n")) == (2, 1)
    assert "is damaged" in errors
    assert (tmp_path / "state" / NAME).read_bytes() == b"torn"


def test_a_service_on_a_public_address_needs_keys(crodobo: Crodobo, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        status, out, errors = crodobo("serve", "--burn", "standard", "--host", host, "--state", tmp_path / "state")
        assert (status, out) == (2, "")
        assert errors.count("\n") == 1
        assert "needs keys" in errors
    assert not (tmp_path / "state" / LEDGER).exists()


def test_a_port_in_use_is_reported_at_once(crodobo: Crodobo, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        status, _, errors = crodobo(
            "serve", "--burn", "standard", "--port", str(other.getsockname()[1]), "--state", tmp_path / "state", "-q"
        )
    assert (status, errors.count("\n")) == (2, 1)
    assert "cannot listen" in errors


def test_a_second_service_on_the_same_port_is_refused() -> None:
    with listen(Address(port=0)) as first, pytest.raises(BadSettings, match="cannot listen"):
        listen(Address(port=first.getsockname()[1]))
