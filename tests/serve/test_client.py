"""The client with real services: numbers, batches, keys, TLS, limits, and requests that must not be sent twice."""

import contextlib
import re
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image

from crodobo import Client
from crodobo.client.forms import as_array, as_object
from crodobo.errors import BadData, BadQuery, BadSettings, NoService, RequestRefused, ServiceError, Unanswered
from crodobo.serve.keys import add_key, remove_key

if TYPE_CHECKING:
    from conftest import Authority

ROOT = Path(__file__).parents[2]
QUEUE = 2
BODY = 60_000  # largest body that the service accepts, in bytes


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module")
def key(keys: Path) -> str:
    return add_key(keys, "shop", "client")


@pytest.fixture(scope="module")
def admin_key(keys: Path) -> str:
    return add_key(keys, "operator", "admin")


@pytest.fixture(scope="module")
def served(start_service: Callable[..., Any], keys: Path, key: str, admin_key: str) -> Any:
    return start_service("--keys", keys, "--queue", QUEUE, "--max-body", BODY, "--name", "pets")


@pytest.fixture
def client(served: Any, key: str) -> Iterator[Client]:
    with Client(served.url, key) as client:
        client.wait_until_ready(60)
        yield client


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (20, 1, 16, 16), dtype=np.uint8)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Images of several sizes and formats."""
    found = []
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 256, (12 + number, 20, 3), dtype=np.uint8)
        found.append(tmp_path / f"{number}.{('png', 'jpg', 'webp')[number % 3]}")
        Image.fromarray(pixels).save(found[-1])
    return found


# Predictions


def test_a_large_batch_is_split_and_each_row_has_its_receipt(client: Client, served: Any, images: np.ndarray) -> None:
    answer = client.predict(images, probabilities=True)
    assert len(answer) == 20
    assert set(answer.labels) <= {"cat", "dog"}
    assert answer.probabilities is not None
    assert answer.probabilities.shape == (20, 2)
    assert np.allclose(answer.probabilities.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(answer.confidence, answer.probabilities.max(axis=1))
    first = answer.queries[0]
    assert answer.queries == [first] * 8 + [first + 1] * 8 + [first + 2] * 4
    ledger = (served.state / "ledger.jsonl").read_text()
    pairs = zip(answer.receipts, answer.queries, strict=True)
    assert all(f'"id":"{receipt}","query":{query}' in ledger for receipt, query in pairs)


def test_an_answer_says_how_many_images_were_learned_and_why_not_all(
    client: Client, images: np.ndarray, paths: list[Path]
) -> None:
    answer = client.predict(images[:2])
    assert (answer.learned, answer.reasons) == (0, ("few samples",))
    for answer in (client.predict(images, adapt=False), client.predict_files(paths, adapt=False)):
        assert (answer.learned, answer.reasons) == (0, ("not asked to adapt",)), (
            "once, though there were several queries"
        )


def test_arrays_tensors_and_floats_of_the_same_pixels_get_the_same_answer(client: Client, images: np.ndarray) -> None:
    forms = [images[:8], torch.from_numpy(images[:8]), images[:8] / 255, torch.from_numpy(images[:8]).float() / 255]
    answers = [client.predict(form, adapt=False, probabilities=True) for form in forms]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer.probabilities, answers[0].probabilities, rtol=0, atol=1e-6)
    assert client.predict(images[:1], adapt=False).probabilities is None


def test_files_of_any_size_and_their_contents_are_predicted(client: Client, paths: list[Path]) -> None:
    answer = client.predict_files(paths, order="predict-then-adapt", probabilities=True)
    assert len(answer) == len(answer.receipts) == 10
    assert answer.probabilities is not None
    contents = client.predict_files([path.read_bytes() for path in paths[:8]], adapt=False)
    assert contents.labels == client.predict_files(paths[:8], adapt=False).labels


def test_an_unusable_file_is_named_and_earlier_answers_are_kept(client: Client, paths: list[Path]) -> None:
    paths[9].write_bytes(b"not an image")
    with pytest.raises(RequestRefused, match=r"9\.png cannot be used: it is ") as error:
        client.predict_files(paths)
    assert (error.value.status, error.value.image) == (400, 9)
    assert len(error.value.answered) == 8


def test_invalid_images_are_refused(client: Client, tmp_path: Path) -> None:
    with pytest.raises(BadQuery, match="samples × channels × height × width"):
        client.predict(np.zeros((16, 16)))
    with pytest.raises(BadQuery, match="type int64"):
        client.predict(np.zeros((1, 1, 16, 16), dtype=np.int64))
    with pytest.raises(BadQuery, match="no files"):
        client.predict_files([])
    with pytest.raises(BadData, match="cannot be read"):
        client.predict_files([tmp_path / "none.png"])
    with pytest.raises(RequestRefused, match=r"`shape` must be \[samples, 1, 16, 16\]"):
        client.predict(np.zeros((1, 3, 16, 16), dtype=np.uint8))
    assert as_array(torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)).dtype == np.float32


def test_metadata_has_the_limits_of_a_request(client: Client) -> None:
    metadata = client.metadata()
    assert metadata["name"] == "pets"
    limits = {"max_batch": 8, "max_body": BODY, "classes": ["cat", "dog"], "idempotency_seconds": 600}
    assert metadata["parameters"] == limits | {"instance": metadata["parameters"]["instance"]}


def test_the_examples_of_the_documentation_work(
    client: Client, served: Any, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the curl lines and the Python code, with this service's address, name and image size."""
    page = (ROOT / "docs" / "serve.md").read_text()
    page = page.replace("http://127.0.0.1:8000", served.url).replace("models/crodobo", "models/pets")
    page = page.replace("32, 32", "16, 16").replace("1024", "256").replace("(100,", "(10,")
    Image.new("RGB", (24, 20), "teal").save(tmp_path / "photo.jpg")
    Image.new("L", (24, 20)).save(tmp_path / "scan.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEY", key)
    for title, code in re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```', page, re.DOTALL | re.MULTILINE):
        (tmp_path / title).write_text(code)
        runpy.run_path(title)
    lines = [line for line in page.splitlines() if line.startswith("curl") and "/admin/" not in line]
    assert len(lines) == 7
    if shutil.which("curl"):
        for line in lines:
            subprocess.run(["sh", "-c", line.replace("curl", "curl --fail -s")], check=True, capture_output=True)


# Limits


def test_files_are_spread_over_requests_and_one_that_is_too_large_is_refused(client: Client, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (200, 200), dtype=np.uint8)
    Image.fromarray(noise[:100]).save(tmp_path / "fits.png")
    answer = client.predict_files([tmp_path / "fits.png"] * 4, adapt=False)
    assert len(set(answer.queries)) == 2  # 20 kB each, two to a request
    Image.fromarray(np.tile(noise, (2, 2))).save(tmp_path / "large.bmp")
    with pytest.raises(RequestRefused, match="larger than 60000 bytes") as error:
        client.predict_files([tmp_path / "large.bmp"])
    assert error.value.status == 413


def test_a_request_that_the_service_finds_too_large_is_halved(client: Client, images: np.ndarray) -> None:
    client.metadata()["parameters"]["max_batch"] = 64  # as if the service had been restarted with a smaller limit
    answer = client.predict(images, adapt=False)
    assert (len(answer), len(set(answer.queries))) == (20, 4)


@contextlib.contextmanager
def crowd(served: Any, key: str) -> Iterator[list[socket.socket]]:
    """Fill the service with requests that never send their bodies."""
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\nContent-Length: 9\r\n\r\n"
    sockets = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(QUEUE)]
    try:
        for each in sockets:
            each.sendall(head.encode())
        with Client(served.url, key) as watcher:
            end = time.monotonic() + 30
            full = f"crodobo_queue_requests {QUEUE}.0"
            while not watcher.connection.ask("GET", "/metrics", lambda response: full in response.text):
                assert time.monotonic() < end
        yield sockets
    finally:
        for each in sockets:
            each.close()


def test_a_request_to_a_busy_service_is_repeated_after_a_while(
    client: Client, served: Any, admin_key: str, images: np.ndarray
) -> None:
    notes: list[str] = []
    with crowd(served, admin_key) as sockets:

        def note(text: str) -> None:
            notes.append(text)
            for each in sockets:
                each.close()

        client.connection.note = note
        started = time.monotonic()
        assert len(client.predict(images[:2])) == 2
    assert "Too many requests at once. Trying again in" in notes[0]
    assert time.monotonic() - started >= 1  # Retry-After


def test_patience_ends(client: Client, served: Any, admin_key: str, images: np.ndarray) -> None:
    client.connection.patience = 0.5  # Retry-After is at least one second, so the request is not repeated
    notes: list[str] = []
    client.connection.note = notes.append
    with crowd(served, admin_key), pytest.raises(RequestRefused, match="Too many requests at once") as error:
        client.predict(images[:2])
    assert error.value.status == 503
    assert notes == []


@pytest.mark.parametrize("status", [500, 502, 503, 504, 520])
def test_a_request_that_a_proxy_could_not_deliver_is_repeated_with_its_key_or_not_at_all(
    served: Any, key: str, images: np.ndarray, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def proxied(http: httpx2.Client, method: str, url: str, **content: Any) -> httpx2.Response:
        if method == "GET":
            return request(http, method, url, **content)
        sent.append(content["headers"]["Idempotency-Key"])
        return httpx2.Response(status, content=b"upstream connect error or reset before headers")

    request = httpx2.Client.request
    monkeypatch.setattr(httpx2.Client, "request", proxied)
    with Client(served.url, key, patience=0.5) as client:
        client.wait_until_ready(60)
        with pytest.raises(Unanswered, match="no answer and no receipt"):
            client.predict(images[:2])
        assert (len(sent) > 1) == (status in (502, 503, 504))
        assert len(set(sent)) == 1


# Keys


def test_keys_may_be_added_and_removed_while_the_service_runs(
    client: Client, served: Any, keys: Path, images: np.ndarray
) -> None:
    with Client(served.url) as stranger, pytest.raises(RequestRefused, match="no valid API key") as error:
        stranger.predict(images[:2])
    assert error.value.status == 401
    with Client(served.url, add_key(keys, "next", "client")) as successor:
        assert len(successor.predict(images[:2])) == 2
        remove_key(keys, "next")
        with pytest.raises(RequestRefused, match="Check the key"):
            successor.predict(images[:2])
    assert len(client.predict(images[:2])) == 2


def test_a_client_key_may_not_administer(client: Client) -> None:
    with pytest.raises(RequestRefused, match="needs an administrator's key") as error:
        client.connection.ask("POST", "/admin/pause", as_object)
    assert error.value.status == 403


# TLS


@pytest.fixture(scope="module")
def guarded(start_service: Callable[..., Any], authority: "Authority") -> Any:
    """A service with mutual TLS and a low request rate."""
    certificate, private = authority.issue("service")
    options = ("--tls-cert", certificate, "--tls-key", private, "--tls-client-ca", authority.certificate)
    return start_service(*options, "--rate", 1)


def test_mutual_tls_admits_only_clients_with_a_certificate(
    guarded: Any, authority: "Authority", images: np.ndarray, tmp_path: Path
) -> None:
    own = authority.issue("shop")
    with Client(guarded.url, ca=authority.certificate, cert=own) as client:
        client.wait_until_ready(60)
        assert len(client.predict(images[:2])) == 2
    with Client(guarded.url) as client, pytest.raises(NoService, match="is not trusted"):
        client.ready()
    with (
        Client(guarded.url, ca=authority.certificate, patience=0) as client,
        pytest.raises(NoService, match="give one as `cert`"),
    ):
        client.predict(images[:2])
    strange = type(authority)(tmp_path).issue("stranger")
    with (
        Client(guarded.url, ca=authority.certificate, cert=strange, patience=0) as client,
        pytest.raises(NoService),
    ):
        client.predict(images[:2])
    with Client(guarded.url.replace("https", "http"), patience=0) as client, pytest.raises(ServiceError):
        client.metadata()


def test_too_many_requests_are_delayed(guarded: Any, authority: "Authority", images: np.ndarray) -> None:
    with Client(guarded.url, ca=authority.certificate, cert=authority.issue("shop")) as client:
        client.wait_until_ready(60)
        notes: list[str] = []
        client.connection.note = notes.append
        for _ in range(20):  # often enough on any machine
            assert len(client.predict(images[:2])) == 2
            if notes:
                break
        assert "Too many requests." in notes[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"url": "127.0.0.1:8000"}, "is not the address of a service"),
        ({"url": "ftp://127.0.0.1"}, "is not the address of a service"),
        ({"url": "http://127.0.0.1", "ca": "ca.pem"}, "Certificates need https"),
        ({"url": "https://127.0.0.1", "ca": "none.pem"}, "certificates cannot be used"),
        ({"url": "http://127.0.0.1", "key": "two words"}, "not a valid API key"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence):
        Client(**arguments)  # type: ignore[arg-type]


# Lost answers


@contextlib.contextmanager
def broken_service(*answers: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that gives one of these answers per connection and closes it. Also gives the requests it received."""
    listener = socket.create_server(("127.0.0.1", 0))
    requests: list[bytes] = []

    def work() -> None:
        for answer in answers:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    requests.append(receive(connection))
                    connection.sendall(answer)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
    finally:
        listener.close()


def receive(connection: socket.socket) -> bytes:
    """Receive a whole request."""
    content = b""
    while b"\r\n\r\n" not in content:
        content += connection.recv(65536)
    found = re.search(rb"content-length: (\d+)", content, re.IGNORECASE)
    end = content.index(b"\r\n\r\n") + 4 + (int(found[1]) if found else 0)
    while len(content) < end:
        content += connection.recv(65536)
    return content


def said(content: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n{content}".encode()


SERVER = said('{"models": ["m"]}')
MODEL = said('{"name": "m", "parameters": {"max_batch": 8, "max_body": 100000, "classes": ["cat"]}}')


def test_a_query_whose_answer_is_lost_is_not_sent_twice(images: np.ndarray) -> None:
    for lost in (b"", said('{"error": "it went wrong"}', "500 Internal Server Error")):
        with broken_service(SERVER, MODEL, lost) as (url, requests), Client(url) as client:
            with pytest.raises(Unanswered, match=r"no answer and no receipt .* not known whether it learned"):
                client.predict(images[:2])
            assert len(requests) == 3


class LosingProxy:
    """Passes requests on to a service and loses the first answer to a POST."""

    def __init__(self, port: int) -> None:
        self.port, self.lost = port, list[bytes]()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.work, daemon=True).start()

    def work(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                with connection, socket.create_connection(("127.0.0.1", self.port)) as service:
                    asked = receive(connection).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
                    service.sendall(asked)
                    with service.makefile("rb") as file:
                        answer = file.read()
                    if asked.startswith(b"POST") and not self.lost:
                        self.lost.append(answer)
                    else:
                        connection.sendall(answer)


@pytest.mark.parametrize("way", ["array", "files"])
def test_a_request_whose_answer_is_lost_is_repeated_and_learned_once(
    served: Any, key: str, images: np.ndarray, paths: list[Path], way: str
) -> None:
    def learned(client: Client) -> int:
        text = client.connection.ask("GET", "/metrics", lambda response: response.text)
        return int(float(re.findall(r"^crodobo_queries_total (.+)$", text, re.MULTILINE)[0]))

    proxy = LosingProxy(served.port)
    with contextlib.closing(proxy.listener), Client(proxy.url, key) as client, Client(served.url, key) as watcher:
        watcher.wait_until_ready(60)
        before = learned(watcher)
        answer = client.predict(images[:2]) if way == "array" else client.predict_files(paths[:2])
        assert answer.receipts[0].encode() in proxy.lost[0]
        assert len(answer) == 2
        assert learned(watcher) == before + 1


def test_a_request_to_a_service_that_was_restarted_is_not_repeated(images: np.ndarray) -> None:
    first, second = (MODEL.replace(b'"max_batch"', f'"instance": "{name}", "max_batch"'.encode()) for name in "ab")
    first, second = (said(model.partition(b"\r\n\r\n")[2].decode()) for model in (first, second))
    with broken_service(SERVER, first, b"", second) as (url, requests), Client(url) as client:
        with pytest.raises(Unanswered, match="not known whether it learned"):
            client.predict(images[:2])
        assert len(requests) == 4


def test_a_request_without_adaptation_is_repeated(images: np.ndarray, tmp_path: Path) -> None:
    Image.fromarray(images[0, 0]).save(tmp_path / "secret.png")
    answer = said('{"predictions": [{"label": "cat", "confidence": 1}], "receipt": "r", "query": 7}')
    with broken_service(b"", SERVER, MODEL, b"", answer) as (url, requests), Client(url) as client:
        found = client.predict_files([tmp_path / "secret.png"], adapt=False)
    assert (found.labels, found.receipts, found.queries) == (["cat"], ["r"], [7])
    assert len(requests) == 5
    assert b"secret" not in b"".join(requests)


def test_another_server_is_recognised(images: np.ndarray) -> None:
    with (
        broken_service(said("<html>")) as (url, _),
        Client(url) as client,
        pytest.raises(ServiceError, match="is not a crodobo service"),
    ):
        client.predict(images[:2])


def closed_url(unused: socket.socket) -> str:
    """The address of a port on which nothing listens, and which no other process can take."""
    unused.bind(("127.0.0.1", 0))
    return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_a_missing_service_is_reported() -> None:
    with socket.socket() as closed, Client(closed_url(closed), patience=0.3) as client:
        assert not client.ready()
        with pytest.raises(NoService, match="No service answers at"):
            client.wait_until_ready(0.3)
        with pytest.raises(NoService, match="connection refused"):
            client.metadata()
    with Client("http://nowhere.invalid") as client, pytest.raises(NoService, match=r"host of .* is unknown"):
        client.wait_until_ready(30)


def test_the_package_needs_httpx2_only_when_a_client_is_made() -> None:
    code = """
import sys

sys.modules["httpx2"] = None  # as if it were not installed
import crodobo
import crodobo.client
from crodobo.client.sending import send
from crodobo.errors import CrodoboError

try:
    crodobo.Client("http://127.0.0.1:8000")
except CrodoboError as error:
    print(error.problem, error.remedy, sep="\\n")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "The client needs the package httpx2.",
        'Install it with `pip install "crodobo[client]"`.',
    ]
