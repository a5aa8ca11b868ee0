"""`crodobo send` with real services: rows on disk, killed and resumed, broken images, keys, and what it refuses."""

import csv
import io
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from crodobo import Client
from crodobo.client.sending import BatchResult, delete_same, read_files
from crodobo.serve.keys import add_key

Crodobo = Callable[..., tuple[int, str, str]]
Command = Callable[..., list[str]]


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the key, and beside it that of the service."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "shop.key").write_text(add_key(folder / "keys.json", "shop", "client") + "\n")
    return folder / "shop.key"


@pytest.fixture(scope="module")
def served(start_service: Callable[..., Any], key_file: Path) -> Any:
    found = start_service("--keys", key_file.with_name("keys.json"), "--max-body", 60_000, "--max-wait", 0.02)
    with Client(found.url) as client:
        client.wait_until_ready(60)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images of several sizes, and what is none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (12 + number, 16), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_text("hidden")
    return folder


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    return tmp_path / "predictions.csv"


@pytest.fixture
def usual(served: Any, folder: Path, predictions: Path, key_file: Path) -> list[str | Path]:
    return ["send", folder, "--url", served.url, "--predictions", predictions, "--key-file", key_file]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_image_gets_a_row_with_its_receipt(
    crodobo: Crodobo, usual: list[str | Path], served: Any, folder: Path, predictions: Path
) -> None:
    status, out, errors = crodobo(*usual, "--probabilities", "--order", "predict-then-adapt", "--batch", 5)
    assert (status, errors) == (0, "")
    assert "12 of 12 images predicted" in out
    found = rows(predictions)
    assert sorted(row["file"] for row in found) == sorted(str(folder / f"{number}.png") for number in range(12))
    ledger = (served.state / "ledger.jsonl").read_text(encoding="utf-8")
    for row in found:
        assert row["label"] in ("cat", "dog")
        assert float(row["p(cat)"]) + float(row["p(dog)"]) == pytest.approx(1, abs=1e-5)
        assert f'"id":"{row["receipt"]}","query":{row["query"]},' in ledger
    assert len(list(folder.glob("*.png"))) == 13
    assert crodobo(*usual, "--probabilities", "--quiet") == (0, f"{predictions}\n", "")
    assert len(rows(predictions)) == 12


def test_an_image_that_has_changed_is_sent_again(
    crodobo: Crodobo, usual: list[str | Path], folder: Path, predictions: Path
) -> None:
    assert crodobo(*usual)[0] == 0
    os.utime(folder / "3.png", (1e9, 1e9))
    assert "1 of 12 images predicted, 11 already had a prediction" in crodobo(*usual)[1]
    assert len(rows(predictions)) == 13


def test_a_send_that_is_killed_goes_on_with_the_rest(
    crodobo: Crodobo, command: Command, usual: list[str | Path], folder: Path, predictions: Path
) -> None:
    one_by_one = ("--batch", "1", "--concurrency", "1", "--delete", "--quiet")
    with subprocess.Popen(command(*usual, *one_by_one)) as process:
        while not (predictions.exists() and len(predictions.read_text(encoding="utf-8").splitlines()) > 2):
            assert process.poll() is None, "it ended before"
            time.sleep(0.005)
        process.kill()
    there = len(rows(predictions))
    assert 2 <= there < 12
    with predictions.open("a", encoding="utf-8") as file:
        file.write("images/torn.png,ca")  # what a crash may leave of a row
    assert crodobo(*usual, *one_by_one)[0] == 0
    names = [row["file"] for row in rows(predictions)]
    assert sorted(names) == sorted(str(folder / f"{number}.png") for number in range(12))
    assert not [path for path in folder.glob("*.png") if not path.name.startswith(".")]


def test_files_without_an_image_suffix_are_skipped_with_a_note(
    crodobo: Crodobo, usual: list[str | Path], folder: Path, predictions: Path
) -> None:
    (folder / "scan.raw").write_bytes(b"a picture of another kind")
    status, out, _ = crodobo(*usual)
    assert (status, len(rows(predictions))) == (0, 12)
    assert "2 files skipped, for example notes.txt" in out


def test_an_image_swapped_in_while_another_was_sent_is_not_deleted(tmp_path: Path) -> None:
    """It has the same name, size and time."""
    path = tmp_path / "a.png"
    path.write_bytes(b"first")
    (sent,) = read_files([path], True, BatchResult())
    path.rename(tmp_path / "moved away")
    path.write_bytes(b"other")
    os.utime(path, ns=(sent.arrival.modified, sent.arrival.modified))
    assert not delete_same(path, sent.arrival)
    assert path.read_bytes() == b"other"


def test_a_file_that_changed_while_it_was_sent_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            content = super().read(-1)
            with open(tmp_path / "scan.png", "wb") as file:
                file.write(b"another picture")
            return content or b""

    (tmp_path / "scan.png").write_bytes(b"a picture")
    os.utime(tmp_path / "scan.png", (1e9, 1e9))
    monkeypatch.setattr(Path, "open", lambda path, *_: Late(path))
    (picture,) = read_files([tmp_path / "scan.png"], True, BatchResult())
    monkeypatch.undo()
    assert picture.content == b"a picture"
    assert not delete_same(picture.path, picture.arrival)


def test_ctrl_c_stops_and_the_same_command_goes_on(
    command: Command, crodobo: Crodobo, usual: list[str | Path], predictions: Path
) -> None:
    slow = ("--batch", "1", "--concurrency", "1", "--quiet")
    with subprocess.Popen(command(*usual, *slow), stderr=subprocess.PIPE, text=True) as process:
        while not (predictions.exists() and len(predictions.read_text(encoding="utf-8").splitlines()) > 1):
            assert process.poll() is None, "it ended before"
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"{len(rows(predictions))} of 12 images have rows" in errors
    assert crodobo(*usual, *slow)[0] == 0
    assert len(rows(predictions)) == 12


def test_broken_images_are_named_at_the_end_and_the_others_are_predicted(
    crodobo: Crodobo, usual: list[str | Path], folder: Path, predictions: Path
) -> None:
    (folder / "3.png").write_bytes(b"no picture")
    (folder / "5.png").write_bytes(b"")
    Image.effect_noise((400, 400), 90).save(folder / "7.bmp")  # larger than the service takes
    (folder / "8.png").unlink()
    (folder / "8.png").symlink_to(folder / "9.png")
    status, _, errors = crodobo(*usual, "--delete")
    assert status == 2
    *lines, last = errors.splitlines()
    assert last == "error: 4 of 13 images were not predicted; the reasons are above."
    assert sorted(Path(line.split(": ")[0]).name for line in lines) == ["3.png", "5.png", "7.bmp", "8.png"]
    assert "it is not an image of a known format" in errors
    assert "larger than 60000 bytes" in errors
    assert "it is a link" in errors
    assert len(rows(predictions)) == 9
    left = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    assert left == ["3.png", "5.png", "7.bmp", "8.png", "notes.txt"]


def test_single_files_and_folders_of_folders(
    crodobo: Crodobo, usual: list[str | Path], folder: Path, predictions: Path
) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "0.png").rename(inner / "0.png")
    named = [folder / "1.png", folder / "2.png"]
    assert crodobo("send", *named, *usual[2:], "--no-adapt")[0] == 0
    assert [row["file"] for row in rows(predictions)] == [str(path) for path in named]
    assert "10 of 12 images predicted, 2 already had a prediction" in crodobo(*usual, "--recursive")[1]


@pytest.fixture
def service_that_hangs_up() -> Iterator[str]:
    """The address of a service that knows what it is, and hangs up on every query."""
    listener = socket.create_server(("127.0.0.1", 0))
    model = '{"name": "m", "parameters": {"max_batch": 8, "max_body": 100000, "classes": ["cat"]}}'
    answers = {b"/v2/health/ready": '{"ready": true}', b"/v2": '{"models": ["m"]}', b"/v2/models/m": model}

    def work() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                path = connection.recv(65536).split(b" ")[1]
                if content := answers.get(path):
                    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
                    connection.sendall((head + content).encode())

    threading.Thread(target=work, daemon=True).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def test_a_lost_answer_is_an_error_that_says_what_is_not_known(
    crodobo: Crodobo, service_that_hangs_up: str, folder: Path, predictions: Path
) -> None:
    status, _, errors = crodobo("send", folder, "--url", service_that_hangs_up, "--predictions", predictions)
    assert status == 2
    assert "no answer and no receipt" in errors
    assert "0 of 12 images have rows" in errors
    assert "Send again to continue with these images and the rest." in errors


def test_the_key_can_come_from_the_environment_and_a_wrong_one_is_refused(
    crodobo: Crodobo, usual: list[str | Path], key_file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without = usual[:-2]
    monkeypatch.delenv("CRODOBO_KEY", raising=False)
    assert "no valid API key" in crodobo(*without)[2]
    monkeypatch.setenv("CRODOBO_KEY", "crodobo_wrong")
    assert "Check the key." in crodobo(*without)[2]
    assert crodobo(*without)[2].endswith("(see --key-file)\n")
    monkeypatch.setenv("CRODOBO_KEY", key_file.read_text(encoding="utf-8").strip())
    assert crodobo(*without)[0] == 0
    assert "cannot be read (No such file" in crodobo(*without, "--key-file", tmp_path / "none")[2]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--url", "http://127.0.0.1:9", "--wait", "0.3"),
            "No service answers at http://127.0.0.1:9 (connection refused).",
        ),
        (
            ("--url", "127.0.0.1"),
            "'127.0.0.1' is not the address of a service. Use one like http://127.0.0.1:8000. (see",
        ),
        (("--cert", "own.pem"), "A client certificate needs its key. Give both. (see --cert, --cert-key)"),
        (("--ca", "ca.pem"), "Certificates need https, and http://127.0.0.1:8000 is not. "),
    ],
)
def test_invalid_arguments_give_one_sentence(
    arguments: tuple[str, ...], sentence: str, crodobo: Crodobo, folder: Path, predictions: Path
) -> None:
    status, _, errors = crodobo("send", folder, "--predictions", predictions, *arguments)
    assert status == 2
    assert sentence in errors
    assert errors.count("\n") == 1


def test_places_without_images_are_refused(crodobo: Crodobo, tmp_path: Path, predictions: Path) -> None:
    assert "contains no images (.jpg" in crodobo("send", tmp_path, "--predictions", predictions)[2]
    assert "There is no file or folder" in crodobo("send", tmp_path / "none", "--predictions", predictions)[2]
