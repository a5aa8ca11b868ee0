"""The service on the wires, as clients meet it: published ones, hostile ones, slow ones, and ones that go away."""

import asyncio
import io
import json
import socket
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import schemathesis
import tritonclient.http as triton
from hypothesis import HealthCheck, Phase, given, settings
from PIL import Image
from schemathesis import GenerationMode
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from conftest import Served

SIZE = 8  # samples of a query
INFER = "/v2/models/crodobo/infer"


def client(server: "Served") -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4, network_timeout=30)


def tensor(images: np.ndarray, binary: bool) -> triton.InferInput:
    named = triton.InferInput("images", list(images.shape), "UINT8" if images.dtype == np.uint8 else "FP32")
    named.set_data_from_numpy(images, binary_data=binary)
    return named


def error(content: bytes) -> str:
    """The sentence of an answer that is none."""
    sentence: str = json.loads(content)["error"]
    return sentence


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    content = b""
    while part := connection.recv(65536):
        content += part
    return content


# --- a published client, unchanged ---


def test_tritonclient_finds_out_what_there_is(server: "Served") -> None:
    asked = client(server)
    assert asked.is_server_live()
    assert asked.is_server_ready()
    assert asked.is_model_ready("crodobo")
    assert asked.is_model_ready("crodobo", "1")
    assert not asked.is_model_ready("another")
    assert "binary_tensor_data" in asked.get_server_metadata()["extensions"]
    (taken,) = asked.get_model_metadata("crodobo")["inputs"]
    assert (taken["name"], taken["datatype"], taken["shape"]) == ("images", "UINT8", [-1, *server.shape])


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tritonclient_gets_predictions_in_json_and_in_bytes(
    server: "Served", binary_in: bool, binary_out: bool
) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_out) for name in ("labels", "confidence", "probabilities")]
    result = client(server).infer("crodobo", [tensor(server.images(), binary_in)], request_id="7", outputs=outputs)
    probabilities, labels = result.as_numpy("probabilities"), result.as_numpy("labels")
    assert probabilities.shape == (SIZE, 3)
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(result.as_numpy("confidence"), probabilities.max(axis=1))
    names = [label.decode() if isinstance(label, bytes) else label for label in labels]
    assert names == [("cat", "dog", "owl")[number] for number in probabilities.argmax(axis=1)]
    said = result.get_response()
    assert (said["id"], said["model_name"], len(said["parameters"]["receipt"])) == ("7", "crodobo", 32)


def test_tritonclient_gets_the_same_whichever_way_it_sends_the_images(server: "Served") -> None:
    images = server.images()
    unit = (images / 255).astype(np.float32)
    answers = [
        client(server).infer("crodobo", [tensor(batch, binary)], parameters={"adapt": False}).as_numpy("probabilities")
        for batch in (images, unit)
        for binary in (True, False)
    ]
    assert all(np.allclose(answers[0], other, atol=1e-6) for other in answers[1:])


def test_tritonclient_is_told_what_is_wrong(server: "Served") -> None:
    wrong = np.zeros((2, 5, 5), np.uint8)
    with pytest.raises(InferenceServerException, match="shape must be") as caught:
        client(server).infer("crodobo", [tensor(wrong, True)])
    assert caught.value.status() == "400"


# --- plain images ---


def test_pictures_arrays_and_raw_pixels_are_all_answered(server: "Served") -> None:
    images = server.images()
    array, picture = io.BytesIO(), io.BytesIO()
    np.save(array, images)
    Image.fromarray(images[0, 0]).save(picture, "PNG")
    part = b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\n' + picture.getvalue() + b"\r\n"
    bodies = {
        "application/octet-stream": images.tobytes(),
        "application/x-npy": array.getvalue(),
        "multipart/form-data; boundary=x": part * SIZE + b"--x--",
    }
    for kind, body in bodies.items():
        status, _, content = server.ask("POST", "/v1/predict?adapt=false", body, Content_Type=kind)
        assert (status, len(json.loads(content)["predictions"])) == (200, SIZE)


def test_pixels_that_cannot_be_are_refused_without_a_word_of_them(server: "Served") -> None:
    path, kind = "/v1/predict?dtype=float32", "application/octet-stream"
    for value in (1.234, -0.4321, np.nan, np.inf):
        body = np.full((1, *server.shape), value, np.float32).tobytes()
        status, _, content = server.ask("POST", path, body, Content_Type=kind)
        assert status == 400
        assert "1234" not in error(content).replace(".", "")
        assert "4321" not in error(content)


# --- each gets its own ---


def test_clients_at_the_same_time_get_their_own_rows(server: "Served") -> None:
    """They share queries, and each is given what it would have been given alone with the same company."""
    sizes = (1, 2, 3, 2)
    images = server.images(sum(sizes))
    pieces = np.split(images, np.cumsum(sizes)[:-1])
    whole = server.predict(images, "/v1/predict?adapt=false&probabilities=true")[1]["predictions"]

    async def ask(piece: np.ndarray) -> dict[str, Any]:
        path = "/v1/predict?adapt=false&probabilities=true"
        return (await asyncio.to_thread(server.predict, piece, path))[1]

    async def together() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(ask, pieces))

    answers = asyncio.run(together())
    assert {answer["samples"] for answer in answers} == {SIZE}
    assert len({answer["query"] for answer in answers}) == 1
    rows = [row for answer in answers for row in answer["predictions"]]
    for found, wanted in zip(rows, whole, strict=True):
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)


# --- full, slow, gone ---


def test_when_the_house_is_full_others_come_again_and_slow_ones_are_not_waited_for(server: "Served") -> None:
    images = server.images(SIZE)
    slow = [server.begin("/v1/predict", images.nbytes) for _ in range(6)]
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 6)
    status, headers, content = server.ask("POST", INFER, b"{}")
    assert (status, error(content)) == (503, "there are too many requests at once")
    assert 1 <= int(headers["retry-after"]) <= 4
    slow[0].sendall(images.tobytes()[1:])  # who hurries is answered
    assert slow[0].recv(65536).startswith(b"HTTP/1.1 200 ")
    for connection in slow[1:]:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    for connection in slow:
        connection.close()
    assert server.metric("crodobo_queue_requests") == 0


def test_there_is_room_for_a_few_large_bodies_and_for_small_ones_beside_them(server: "Served") -> None:
    large = [server.begin(INFER, 64 * 2**20) for _ in range(4)]
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 4)
    status, headers, content = server.ask("POST", INFER, bytes(2**20 + 1))
    assert (status, error(content), headers["retry-after"]) == (503, "there are too many large bodies at once", "1")
    assert server.predict(server.images())[0] == 200
    for connection in large:
        connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)


def test_who_goes_away_before_his_turn_is_not_learned_from(server: "Served") -> None:
    _, before = server.predict(server.images())
    image = server.images(1)
    connection = server.begin("/v1/predict", image.nbytes, image.tobytes())
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 1)
    connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)
    _, after = server.predict(server.images())
    assert (after["query"], after["samples"]) == (before["query"] + 1, SIZE)


def test_who_goes_away_while_his_body_is_coming_leaves_nothing_behind(server: "Served") -> None:
    before = server.metric("crodobo_queries_total")
    connection = server.begin(INFER, 1000)
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 1)
    connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)
    assert server.metric("crodobo_queries_total") == before


# --- lengths that are not so ---


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 411),
        ("\r\n", 411),
        ("Content-Length: 0\r\n\r\n", 400),
        ("Content-Length: -5\r\n\r\n{}", 400),
        ("Content-Length: two\r\n\r\n{}", 400),
        ("Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ", 400),
        ("Content-Length: 99999999999\r\n\r\n{}", 413),
        ("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        ("Content-Length: 2\r\nInference-Header-Content-Length: 3\r\n\r\n{}", 400),
        ("Content-Length: 2\r\nInference-Header-Content-Length: -1\r\n\r\n{}", 400),
        ("Content-Length: 2\r\nInference-Header-Content-Length: 99999999999999999999\r\n\r\n{}", 400),
        ("Content-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}", 415),
    ],
)
def test_a_body_of_no_or_another_length_than_it_says_is_refused(server: "Served", head: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{head}".encode())
        assert int(received(connection).split()[1]) == status


def test_what_comes_after_a_body_is_no_part_of_it(server: "Served") -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{{}}sesame".encode())
        time.sleep(0.05)
        connection.shutdown(socket.SHUT_WR)
        content = received(connection)
    assert content.startswith(b"HTTP/1.1 400 ")
    assert b"sesame" not in content
    assert server.is_ready()


# --- hostile ---


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/v2/models/{name}/infer", GenerationMode.NEGATIVE),
        ("/v2/models/{name}/infer", GenerationMode.POSITIVE),
        ("/v1/predict", GenerationMode.NEGATIVE),
        ("/admin/{action}", GenerationMode.NEGATIVE),
    ],
)
def test_requests_generated_from_the_openapi_document_fail_nothing(
    server: "Served", path: str, mode: GenerationMode
) -> None:
    """A few, because they take long to make; benchmarks/fuzz.py sends thousands."""
    document = schemathesis.openapi.from_dict(json.loads(server.ask("GET", "/openapi.json")[2]))
    before, answered = server.metric("crodobo_queries_total"), 0

    @settings(max_examples=8, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
    @given(case=document[path]["POST"].as_strategy(generation_mode=mode))
    def generated(case: schemathesis.Case) -> None:
        nonlocal answered
        if "name" in case.path_parameters:
            case.path_parameters["name"] = "crodobo"
        response = case.call(base_url=f"http://127.0.0.1:{server.port}", timeout=30)
        assert response.status_code in (200, 400, 404, 405, 411, 413, 415, 422)
        answered += response.status_code == 200
        assert response.status_code == 200 or list(response.json()) == ["error"]

    generated()
    assert server.metric("crodobo_queries_total") == before + answered


def test_pages_of_other_sites_and_other_names_of_this_machine_are_refused_where_there_are_no_keys(
    server: "Served",
) -> None:
    """A browser would send their requests from here."""
    before = server.metric("crodobo_queries_total")
    kind, body = "application/octet-stream", server.images().tobytes()
    others: tuple[dict[str, str], ...] = (
        {"Host": "rebound.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{server.port + 1}"},
    )
    for headers in others:
        for path in ("/v1/predict", "/admin/reset"):
            status, _, content = server.ask("POST", path, body, Content_Type=kind, **headers)
            assert (status, "another site" in error(content)) == (403, True)
    for host in ("localhost:80", "127.0.0.1", "[::1]:8000", "[::1]"):
        assert server.ask("GET", "/metrics", Host=host, Origin=f"http://{host}")[0] == 200
    assert server.metric("crodobo_queries_total") == before


def test_every_status_that_a_request_can_get_is_in_the_openapi_document(server: "Served") -> None:
    paths = json.loads(server.ask("GET", "/openapi.json")[2])["paths"]
    for path in (INFER.replace("crodobo", "{name}"), "/v1/predict"):
        stated = {int(status) for status in paths[path]["post"]["responses"]}
        assert stated >= {200, 400, 401, 403, 408, 411, 413, 415, 422, 429, 500, 503}
        assert (404 in stated) == ("{name}" in path)
    whole = paths["/v1/predict"]["post"]["responses"]
    assert whole["422"]["content"]["application/json"]["schema"]["required"] == ["error"]  # not FastAPI's own
