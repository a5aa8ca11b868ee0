"""How the service stops: in order after a signal, at any moment by a kill, and at once where it cannot begin."""

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
    """Queries that the learners of the checkpoint have met."""
    with safe_open(state / NAME, framework="pt") as file:
        progress: dict[str, int] = json.loads(file.metadata()["crodobo"])["progress"]
    return progress["queries"]


def receipts(state: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (state / LEDGER).read_text().splitlines()]
    return [line for line in lines if line["kind"] == "query"]


def under_load(server: "Served", until: int) -> tuple[list[dict[str, Any]], threading.Event, ThreadPoolExecutor]:
    """Clients that ask again and again; comes back when so many have been answered."""
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


def test_a_kill_under_load_loses_at_most_what_was_not_answered_and_a_signal_ends_all_in_order(
    serve: "Serve", tmp_path: Path
) -> None:
    """One test, because each start takes seconds."""
    # killed
    with serve(state := tmp_path / "state") as server:
        answers, enough, clients = under_load(server, until=12)
        server.end(signal.SIGKILL)
        enough.set()
        clients.shutdown()
    kept, last = met(state), receipts(state)[-1]["query"]
    ids = {receipt["id"] for receipt in receipts(state)}
    assert {answer["receipt"] for answer in answers} <= ids  # who was answered has a receipt
    assert 10 <= kept <= last  # a checkpoint is written every ten queries
    assert audit_ledger(state / LEDGER, unclosed=True).sound
    assert not audit_ledger(state / LEDGER).sound

    # and started again
    with serve(state, "--checkpoint-every", "1") as again:
        assert again.predict(again.images())[1]["query"] == last + 1
        assert met(state) == kept + 1  # before the answer was given

        # ended while some wait for others to share a query, one is still sending, and one only watches
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
        assert out.startswith("stopped in order after ")
        with pytest.raises(ConnectionRefusedError):
            again.ask("GET", "/v2/health/live")
        watching.close()
        sending.close()
    numbers = [receipt["query"] for receipt in receipts(state)]
    assert numbers == list(range(1, len(numbers) + 1))  # none was given twice
    assert met(state) == kept + len(numbers) - last
    assert numbers[-1] > last + 1
    report = audit_ledger(state / LEDGER)
    assert report.sound, report.found


def test_a_service_that_can_write_no_receipt_ends(server: "Served") -> None:
    (server.state / LEDGER).unlink()
    watching = server.begin("/events", 0, b"", method="GET")
    status, content = server.predict(server.images())
    assert (status, list(content)) == (500, ["error"])
    server.process.wait(30)
    status, _, errors = server.end()
    assert status == 2
    assert errors.count("\n") == 1
    assert "no query is met without one" in errors
    watching.close()


def test_a_start_that_cannot_go_on_ends_with_a_sentence(
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


def test_a_service_that_others_could_reach_needs_keys(crodobo: Crodobo, tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        status, out, errors = crodobo("serve", "--burn", "standard", "--host", host, "--state", tmp_path / "state")
        assert (status, out) == (2, "")
        assert errors.count("\n") == 1
        assert "needs keys" in errors
    assert not (tmp_path / "state" / LEDGER).exists()


def test_a_port_that_is_in_use_is_said_at_once(crodobo: Crodobo, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        status, _, errors = crodobo(
            "serve", "--burn", "standard", "--port", str(other.getsockname()[1]), "--state", tmp_path / "state", "-q"
        )
    assert (status, errors.count("\n")) == (2, 1)
    assert "cannot listen" in errors


def test_of_two_services_that_start_at_once_on_a_port_the_second_is_told() -> None:
    with listen(Address(port=0)) as first, pytest.raises(BadSettings, match="cannot listen"):
        listen(Address(port=first.getsockname()[1]))
