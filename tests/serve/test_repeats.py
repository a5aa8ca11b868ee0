"""Repeated requests: with the same Idempotency-Key a request is learned once, and its answer is given again."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from fastapi import Request, Response

from crodobo.serve import repeats
from crodobo.serve.errors import BadRequest
from crodobo.serve.keys import Caller
from crodobo.serve.repeats import Repeats

if TYPE_CHECKING:
    from conftest import Served

RAW = "application/octet-stream"
INFER = "/v2/models/crodobo/infer"


def post(server: "Served", key: str, seed: int = 0, path: str = "/v1/predict") -> tuple[int, dict[str, str], bytes]:
    return server.ask("POST", path, server.images(seed=seed).tobytes(), Content_Type=RAW, Idempotency_Key=key)


def test_a_repeated_request_gets_the_same_answer_and_is_not_learned_again(server: "Served") -> None:
    before = server.metric("crodobo_queries_total")
    first, again = post(server, "one"), post(server, "one")
    assert (first[0], again[0]) == (200, 200)
    assert first[2] == again[2]
    assert ("idempotent-replayed" in first[1], again[1]["idempotent-replayed"]) == (False, "true")
    assert server.metric("crodobo_queries_total") == before + 1
    assert json.loads(post(server, "two")[2])["query"] == json.loads(first[2])["query"] + 1


def test_an_inference_with_bytes_is_repeated_with_its_headers(server: "Served") -> None:
    size = {"binary_data_size": 8 * 256}
    images = {"name": "images", "shape": [8, 1, 16, 16], "datatype": "UINT8", "parameters": size}
    header = json.dumps({"inputs": [images], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Inference_Header_Content_Length": str(len(header)), "Idempotency_Key": "bytes"}
    first, again = (server.ask("POST", INFER, header + server.images().tobytes(), **headers) for _ in range(2))
    assert first[0] == again[0] == 200
    assert first[2] == again[2]
    assert first[1]["inference-header-content-length"] == again[1]["inference-header-content-length"]


@pytest.mark.parametrize(("seed", "path"), [(1, "/v1/predict"), (0, "/v1/predict?adapt=false")])
def test_another_request_with_the_same_key_is_refused(server: "Served", seed: int, path: str) -> None:
    key = f"other {seed}".replace(" ", "-")
    assert post(server, key)[0] == 200
    before = server.metric("crodobo_queries_total")
    status, _, content = post(server, key, seed, path)
    assert (status, json.loads(content)["error"]) == (422, "Another request had this Idempotency-Key. Use a new one.")
    assert server.metric("crodobo_queries_total") == before


def test_an_invalid_key_is_refused(server: "Served") -> None:
    status, _, content = post(server, "x" * 129)
    assert (status, "1 to 128 visible ASCII characters" in content.decode()) == (400, True)


def test_a_request_that_is_repeated_while_it_is_processed_waits_for_the_answer(server: "Served") -> None:
    before = server.metric("crodobo_queries_total")
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: post(server, "at-once"), range(3)))
    assert {(status, content) for status, _, content in answers} == {(200, answers[0][2])}
    assert server.metric("crodobo_queries_total") == before + 1


def test_a_query_whose_client_has_left_is_answered_when_it_is_asked_for_again(server: "Served") -> None:
    """The client leaves when its query may have begun. Whether it had or not, it is learned once."""
    before = server.metric("crodobo_queries_total")
    images = server.images(seed=5)
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {RAW}\r\nIdempotency-Key: left"
    with socket.create_connection(("127.0.0.1", server.port)) as made:
        made.sendall(f"{head}\r\nContent-Length: {images.nbytes}\r\n\r\n".encode() + images.tobytes())
        server.wait_until(lambda: server.metric("crodobo_queue_requests") == 1 or learned(server) > before)
    assert post(server, "left", seed=5)[0] == 200
    assert learned(server) == before + 1


def learned(server: "Served") -> float:
    return server.metric("crodobo_queries_total")


# Without HTTP


@pytest.fixture
def ask() -> Iterator[Callable[..., Any]]:
    """Ask for the answer of a request in an event loop, with these bytes as the answer of the service."""
    known = Repeats()
    with asyncio.Runner() as runner:

        def once(key: str, answer: bytes | Exception, body: bytes = b"body", caller: str = "shop") -> bytes:
            scope = {"type": "http", "method": "POST", "path": "/v1/predict", "query_string": b"", "server": ("h", 1)}
            request = Request(scope | {"headers": [(b"idempotency-key", key.encode())]})
            request.state.caller = Caller(caller, "client")

            async def work() -> Response:
                if isinstance(answer, Exception):
                    raise answer
                return Response(answer)

            tensor = torch.frombuffer(bytearray(body), dtype=torch.uint8)
            return bytes(runner.run(known.answer_once(request, tensor, work)).body)

        once.known = known  # type: ignore[attr-defined]
        yield once


def test_keys_of_other_clients_are_other_keys(ask: Callable[..., bytes]) -> None:
    assert ask("key", b"first") == ask("key", b"second") == b"first"
    assert ask("key", b"third", caller="ward") == b"third"


def test_a_request_that_failed_may_be_tried_again(ask: Callable[..., bytes]) -> None:
    with pytest.raises(BadRequest):
        ask("key", BadRequest("No."))
    assert ask("key", b"first", body=b"another") == b"first"


def test_answers_are_forgotten_after_a_while_and_when_there_are_too_many(
    ask: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "OWN_ANSWERS", 3)
    for number in range(5):
        ask(str(number), b"first")
    assert [ask(str(number), b"second") for number in (4, 3, 0)] == [b"first", b"first", b"second"]
    monkeypatch.setattr(repeats, "OWN_BYTES", 10)
    ask("long", bytes(11))
    assert ask("long", b"second") == b"second"
    monkeypatch.setattr(repeats, "time", SimpleNamespace(monotonic=lambda: 1e12))
    ask("new", b"first")
    assert ask("3", b"third") == b"third"


def test_one_client_cannot_displace_the_answers_of_others(
    ask: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "ALL_BYTES", 20)
    ask("key", b"first", caller="ward")
    for number in range(9):
        ask(str(number), b"four")
    assert ask("key", b"second", caller="ward") == b"first"


def test_only_answers_and_keyed_hashes_are_kept(ask: Callable[..., bytes]) -> None:
    """The hash of the same body differs from process to process."""
    ask("key", b"answer", body=b"a private image")
    kept = vars(ask)["known"]._clients["shop/"]["key"]
    assert (kept.answer.body, len(kept.digest)) == (b"answer", 64)
    assert "private" not in repr(vars(kept))
    other = Repeats()
    vars(ask)["known"]._secret = other._secret  # as in another process
    with pytest.raises(BadRequest, match="Another request"):
        ask("key", b"answer", body=b"a private image")
