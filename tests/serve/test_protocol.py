"""The service over HTTP: with a published client, and with hostile, slow and disconnecting clients."""

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

SIZE = 8  # samples per query
INFER = "/v2/models/crodobo/infer"
IN_JSON = "Put it into the `parameters` of the JSON."
ORDERS = "'adapt-then-predict' or 'predict-then-adapt'"


def client(server: "Served") -> triton.InferenceServerClient:
    return triton.InferenceServerClient(f"127.0.0.1:{server.port}", concurrency=4, network_timeout=30)


def tensor(images: np.ndarray, binary: bool) -> triton.InferInput:
    named = triton.InferInput("images", list(images.shape), "UINT8" if images.dtype == np.uint8 else "FP32")
    named.set_data_from_numpy(images, binary_data=binary)
    return named


def error(content: bytes) -> str:
    """The text of an error response."""
    sentence: str = json.loads(content)["error"]
    return sentence


def received(connection: socket.socket) -> bytes:
    """Receive until the other side closes."""
    content = b""
    while part := connection.recv(65536):
        content += part
    return content


# --- a published client, unchanged ---


def test_tritonclient_reads_the_metadata(server: "Served") -> None:
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
def test_tritonclient_gets_predictions_in_json_and_as_bytes(
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


def test_tritonclient_gets_the_same_predictions_for_every_format(server: "Served") -> None:
    images = server.images()
    unit = (images / 255).astype(np.float32)
    answers = [
        client(server).infer("crodobo", [tensor(batch, binary)], parameters={"adapt": False}).as_numpy("probabilities")
        for batch in (images, unit)
        for binary in (True, False)
    ]
    assert all(np.allclose(answers[0], other, atol=1e-6) for other in answers[1:])


def test_tritonclient_receives_the_error(server: "Served") -> None:
    wrong = np.zeros((2, 5, 5), np.uint8)
    with pytest.raises(InferenceServerException, match="`shape` must be") as caught:
        client(server).infer("crodobo", [tensor(wrong, True)])
    assert caught.value.status() == "400"


# --- plain images ---


def test_image_files_arrays_and_raw_pixels_are_answered(server: "Served") -> None:
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


def test_invalid_pixels_are_refused_and_not_repeated(server: "Served") -> None:
    path, kind = "/v1/predict?dtype=float32", "application/octet-stream"
    for value in (1.234, -0.4321, np.nan, np.inf):
        body = np.full((1, *server.shape), value, np.float32).tobytes()
        status, _, content = server.ask("POST", path, body, Content_Type=kind)
        assert status == 400
        assert "1234" not in error(content).replace(".", "")
        assert "4321" not in error(content)


# --- concurrent clients ---


def test_concurrent_clients_get_their_own_rows(server: "Served") -> None:
    """They share a query, and each gets the rows that the whole batch would get."""
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
    assert tuple(answer["samples"] for answer in answers) == sizes
    assert len({answer["query"] for answer in answers}) == 1
    rows = [row for answer in answers for row in answer["predictions"]]
    for found, wanted in zip(rows, whole, strict=True):
        assert found["probabilities"] == pytest.approx(wanted["probabilities"], abs=1e-5)


# --- full, slow, disconnected ---


def test_a_full_service_refuses_requests_and_does_not_wait_for_slow_ones(server: "Served") -> None:
    images = server.images(SIZE)
    slow = [server.begin("/v1/predict", images.nbytes) for _ in range(6)]
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 6)
    status, headers, content = server.ask("POST", INFER, b"{}")
    assert (status, error(content)) == (503, "Too many requests at once.")
    assert 1 <= int(headers["retry-after"]) <= 4
    slow[0].sendall(images.tobytes()[1:])  # a body that arrives in time is answered
    assert slow[0].recv(65536).startswith(b"HTTP/1.1 200 ")
    for connection in slow[1:]:
        assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
    for connection in slow:
        connection.close()
    assert server.metric("crodobo_queue_requests") == 0


def test_a_few_large_bodies_leave_room_for_small_ones(server: "Served") -> None:
    large = [server.begin(INFER, 64 * 2**20) for _ in range(4)]
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 4)
    status, headers, content = server.ask("POST", INFER, bytes(2**20 + 1))
    assert (status, error(content), headers["retry-after"]) == (503, "Too many large bodies at once.", "1")
    assert server.predict(server.images())[0] == 200
    for connection in large:
        connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)


def test_a_client_that_disconnects_before_its_turn_is_not_learned(server: "Served") -> None:
    _, before = server.predict(server.images())
    image = server.images(1)
    connection = server.begin("/v1/predict", image.nbytes, image.tobytes())
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 1)
    connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)
    _, after = server.predict(server.images())
    assert (after["query"], after["samples"]) == (before["query"] + 1, SIZE)


def test_a_client_that_disconnects_during_its_body_is_not_learned(server: "Served") -> None:
    before = server.metric("crodobo_queries_total")
    connection = server.begin(INFER, 1000)
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 1)
    connection.close()
    server.wait_until(lambda: server.metric("crodobo_queue_requests") == 0)
    assert server.metric("crodobo_queries_total") == before


# --- wrong lengths ---


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
def test_a_missing_or_wrong_length_is_refused(server: "Served", head: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{head}".encode())
        assert int(received(connection).split()[1]) == status


def test_bytes_after_the_body_are_not_part_of_it(server: "Served") -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n\r\n{{}}sesame".encode())
        time.sleep(0.05)
        connection.shutdown(socket.SHUT_WR)
        content = received(connection)
    assert content.startswith(b"HTTP/1.1 400 ")
    assert b"sesame" not in content
    assert server.is_ready()


# --- hostile requests ---


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("/v2/models/{name}/infer", GenerationMode.NEGATIVE),
        ("/v2/models/{name}/infer", GenerationMode.POSITIVE),
        ("/v1/predict", GenerationMode.NEGATIVE),
        ("/admin/{action}", GenerationMode.NEGATIVE),
    ],
)
def test_requests_generated_from_the_openapi_document_cause_no_failure(
    server: "Served", path: str, mode: GenerationMode
) -> None:
    """Only a few, because they are slow to generate. benchmarks/fuzz.py sends thousands."""
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
        assert response.status_code == 200 or list(response.json()) in (["error"], ["error", "image", "reason"])

    generated()
    assert server.metric("crodobo_queries_total") == before + answered


def test_without_keys_requests_on_behalf_of_other_sites_are_refused(
    server: "Served",
) -> None:
    """A browser on this machine would send them."""
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


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("POST", "/v1/predict?adapt=maybe", 422, "`adapt` must be true or false, not 'maybe'."),
        ("POST", "/v1/predict?dtype=int8", 422, "`dtype` must be 'uint8' or 'float32', not 'int8'."),
        ("POST", "/admin/explode", 422, "`action` must be 'pause', 'resume', 'reset' or 'checkpoint', not 'explode'."),
        ("GET", "/v2/models/other", 404, "There is no such model. This service has the model crodobo, version 1."),
        ("POST", "/v1/predict?order=maybe", 422, f"`order` must be {ORDERS}, not 'maybe'."),
        ("POST", "/v1/predict?adpt=false", 422, "There is no parameter 'adpt' here. Did you mean adapt?"),
        ("POST", f"{INFER}?adapt=false", 422, f"There is no parameter 'adapt' here. {IN_JSON}"),
        ("POST", "/admin/pause?now=1", 422, "There is no parameter 'now' here. Leave it out."),
        ("GET", "/v2/", 404, "There is nothing at this path."),
        ("GET", "/nothing", 404, "There is nothing at this path."),
        ("GET", "/v1/predict", 405, "This path does not support this method."),
    ],
)
def test_wrong_parameters_and_paths_get_a_clear_sentence(
    server: "Served", method: str, path: str, status: int, text: str
) -> None:
    found, headers, content = server.ask(method, path)
    assert (found, error(content)) == (status, text)
    assert "location" not in headers


def test_an_image_with_a_mistyped_parameter_is_not_learned(server: "Served") -> None:
    before = server.metric("crodobo_queries_total")
    assert server.predict(server.images(), "/v1/predict?adpt=false")[0] == 422
    images = {"name": "images", "shape": [1, 1, 16, 16], "datatype": "UINT8", "data": [0] * 256}
    body = json.dumps({"inputs": [images], "parameters": {"adpt": False}}).encode()
    status, _, content = server.ask("POST", INFER, body)
    sentence = "The request has an unknown name in its `parameters`. Did you mean adapt?"
    assert (status, error(content)) == (400, sentence)
    assert server.metric("crodobo_queries_total") == before


def test_the_openapi_document_has_every_status(server: "Served") -> None:
    paths = json.loads(server.ask("GET", "/openapi.json")[2])["paths"]
    for path in (INFER.replace("crodobo", "{name}"), "/v1/predict"):
        stated = {int(status) for status in paths[path]["post"]["responses"]}
        assert stated >= {200, 400, 401, 403, 408, 411, 413, 415, 422, 429, 500, 503}
        assert (404 in stated) == ("{name}" in path)
    whole = paths["/v1/predict"]["post"]["responses"]
    assert whole["422"]["content"]["application/json"]["schema"]["required"] == ["error"]  # not FastAPI's own
