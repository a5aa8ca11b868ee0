"""`crodobo adapt` as a person meets it: what it says, what it refuses, and signals in real processes."""

import csv
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.cli.main import main
from crodobo.session.checkpoint import NAME

Crodobo = Callable[..., tuple[int, str, str]]
Command = Callable[..., list[str]]


def picture(number: int) -> bytes:
    """A noisy PNG of 16×16."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (16, 16), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def wait_until(condition: Callable[[], bool], alive: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not condition():
        assert alive(), "it ended before"
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    for number in range(12):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture(100 + number))
    return folder


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """An inbox with ten images and a file that is none."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for number in range(10):
        (folder / f"{number}.png").write_bytes(picture(number))
    (folder / "broken.png").write_bytes(b"no picture")
    for path in folder.iterdir():
        os.utime(path, (10**9, 10**9))
    return folder


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    return tmp_path / "predictions.csv"


@pytest.fixture
def usual(
    public: Path, inbox: Path, predictions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str | Path]:
    """The smallest command."""
    monkeypatch.setenv("CRODOBO_CACHE", str(tmp_path / "cache"))
    places: list[str | Path] = ["adapt", "--source", public, "--inbox", inbox, "--predictions", predictions]
    return [*places, "--grey", "--image-size", "16", "--warmup", "0", "--query-size", "4", "--method", "source-only"]


def test_the_first_line_warns_of_deletion_and_the_last_is_the_path_of_the_predictions(
    usual: list[str | Path], crodobo: Crodobo, inbox: Path, predictions: Path
) -> None:
    status, out, errors = crodobo(*usual)
    assert (status, errors) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"EACH IMAGE IN {inbox} IS DELETED once its prediction is in {predictions}."
    assert lines[-1] == str(predictions)
    said = " ".join(out.split())
    assert "predicted 10 files, deleted" in said
    assert "in quarantine 1 file, in" in said
    assert "queries 3, 3 in all" in said
    assert [path.name for path in inbox.iterdir()] == ["quarantine"]
    assert {path.name for path in (inbox / "quarantine").iterdir()} == {"broken.png", "broken.png.reason.txt"}
    summary = json.loads(Path(f"{predictions}.state/summary.json").read_text(encoding="utf-8"))
    found = rows(predictions)
    assert (summary["predicted"], summary["quarantined"], len(found)) == (10, 1, 10)
    assert sum(summary["classes"].values()) == 10
    assert {row["label"] for row in found} <= {"cat", "dog"}


def test_files_that_stay_are_mentioned(usual: list[str | Path], crodobo: Crodobo, inbox: Path, tmp_path: Path) -> None:
    (inbox / "sub").mkdir()
    (inbox / ".hidden.png").write_bytes(picture(1))
    (inbox / "slow.png.part").write_bytes(picture(1))
    os.link(inbox / "1.png", tmp_path / "linked.png")
    status, out, _ = crodobo(*usual)
    said = " ".join(out.split())
    assert status == 0
    for words in ("Not read in the inbox: ", "sub-folders: 1", "hidden: 1", "unfinished names: 1", "--recursive reads"):
        assert words in said
    assert "not gone 1 file of those deleted still exist under another name (a hard link)" in said


def test_keep_files_keeps_the_images(usual: list[str | Path], crodobo: Crodobo, inbox: Path, predictions: Path) -> None:
    status, out, _ = crodobo(*usual, "--keep-files", "--probabilities")
    assert status == 0
    assert out.splitlines()[0] == f"Images in {inbox} are kept. Predictions go to {predictions}."
    assert "predicted 10 files, kept" in " ".join(out.split())
    assert len(list(inbox.glob("*.png"))) == 10
    before = predictions.read_bytes()
    status, out, _ = crodobo(*usual, "--keep-files", "--probabilities")
    assert (status, predictions.read_bytes()) == (0, before)
    assert "predicted 0 files" in " ".join(out.split())
    for row in rows(predictions):
        assert float(row["p(cat)"]) + float(row["p(dog)"]) == pytest.approx(1, abs=2e-6)


def test_quiet_prints_only_the_file_of_predictions(
    usual: list[str | Path], crodobo: Crodobo, predictions: Path
) -> None:
    assert crodobo(*usual, "--quiet") == (0, f"{predictions}\n", "")


def test_relative_paths_and_the_home_folder_are_resolved(
    usual: list[str | Path], crodobo: Crodobo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    changed = [*usual, "--inbox", "inbox", "--predictions", "~/p.csv", "--state", "~/st", "--quarantine", "~/bad"]
    assert crodobo(*changed)[0] == 0
    assert len(rows(tmp_path / "p.csv")) == 10
    assert (tmp_path / "st" / NAME).exists()
    assert (tmp_path / "bad" / "broken.png").exists()


def test_an_unknown_preset_and_a_missing_source_give_one_sentence(
    crodobo: Crodobo, inbox: Path, predictions: Path
) -> None:
    places = ("adapt", "--inbox", inbox, "--predictions", predictions)
    for more, sentence in (
        ((), "There is no source. Name labelled public images, or a preset. (see --source, --benchmark)"),
        (("--preset", "magic"), "There is no preset 'magic'. Choose one of paper/camelyon17, "),
    ):
        status, _, errors = crodobo(*places, *more)
        assert status == 2
        assert errors.startswith(f"error: {sentence}")
    assert len(list(inbox.iterdir())) == 11


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--inbox", "nowhere"], "There is no folder"),
        (["--source", "nowhere"], "There is no"),
        (["--predictions", "{inbox}/p.csv"], "The predictions cannot be in the inbox"),
        (["--state", "{inbox}/state"], "The learners' state cannot be in the inbox"),
        (["--source", "{inbox}"], "The source cannot be in the inbox"),
        (["--inbox", "{public}/cat"], "holds images of the source"),
        (["--quarantine", "{inbox}"], "The quarantine cannot be the inbox"),
        (
            ["--predictions", "{public}/cat/0.png"],
            "is not a file of predictions. Choose another file.",
        ),
        (["--predictions", "/dev/null/p.csv"], "is not writable"),
        (["--max-wait", "-1"], "max_wait cannot be -1"),
        (["--checkpoint-every", "0"], "checkpoint_every cannot be 0"),
        (["--method", "conda"], "keeps target data"),
        (["--set", "magic=1"], "There is no option --magic."),
        (["--magic", "1"], "There is no option --magic."),
        (["--inboxes", "x"], "There is no option --inboxes. Did you mean --inbox?"),
    ],
)
def test_invalid_arguments_give_one_sentence_and_change_nothing(
    arguments: list[str], sentence: str, usual: list[str | Path], crodobo: Crodobo, inbox: Path, public: Path
) -> None:
    filled = [each.format(inbox=inbox, public=public) for each in arguments]
    before = {path: path.read_bytes() for path in (*inbox.glob("*.png"), *public.rglob("*.png"))}
    status, out, errors = crodobo(*usual, *filled)
    assert status == 2
    assert "cannot be in the inbox" not in errors or not out
    assert sentence in " ".join(errors.split())
    assert errors.startswith("error: ")
    assert len(errors.splitlines()) == 1
    assert {path: path.read_bytes() for path in (*inbox.glob("*.png"), *public.rglob("*.png"))} == before


def test_a_method_without_an_online_form_is_refused(usual: list[str | Path], crodobo: Crodobo, inbox: Path) -> None:
    from crodobo.methods import REGISTRY

    offline = next(name for name, kind in REGISTRY.items() if "online" not in kind.protocols)
    status, _, errors = crodobo(*usual, "--method", offline)
    assert (status, "no online form" in errors) == (2, True)
    assert len(list(inbox.glob("*.png"))) == 11


def test_a_checkpoint_of_other_settings_is_refused_and_fresh_starts_over(
    usual: list[str | Path], crodobo: Crodobo, inbox: Path, predictions: Path
) -> None:
    assert crodobo(*usual, "-q")[0] == 0
    (inbox / "new.png").write_bytes(picture(50))
    os.utime(inbox / "new.png", (10**9, 10**9))
    status, _, errors = crodobo(*usual, "--seed", "3")
    assert status == 2
    assert "seed is 0 there and 3 here" in errors
    assert errors.endswith("or start over. (see --predictions, --state, --fresh)\n")
    assert (inbox / "new.png").exists()
    status, out, _ = crodobo(*usual, "--seed", "3", "--fresh")
    assert status == 0
    assert "Starting over with new learners." in out
    assert [row["file"] for row in rows(predictions)][-1] == "new.png"
    assert len(rows(predictions)) == 11


def test_other_columns_are_refused(usual: list[str | Path], crodobo: Crodobo, predictions: Path) -> None:
    assert crodobo(*usual, "-q")[0] == 0
    before = predictions.read_bytes()
    status, _, errors = crodobo(*usual, "--probabilities")
    assert (status, predictions.read_bytes()) == (2, before)
    assert "Ask for probabilities as before, or choose another file" in errors


@pytest.mark.parametrize("watch", [True, False], ids=["watching", "not watching"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_at_the_next_safe_point(
    number: signal.Signals, watch: bool, usual: list[str | Path], inbox: Path, predictions: Path, crodobo: Crodobo
) -> None:
    slow = inbox / "slow.png"
    with slow.open("wb") as writer:  # what it waits for when it is not watching
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["crodobo.inbox.adapt"])
        process = context.Process(target=main)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                sys,
                "argv",
                ["crodobo", *map(str, usual), "--max-wait", "0", "-q", "--burn", "standard", *["--watch"] * watch],
            )
            process.start()
        wait_until(lambda: predictions.exists() and len(rows(predictions)) == 10, process.is_alive)
        assert process.pid
        os.kill(process.pid, number)
        process.join(30)
        assert process.exitcode == (0 if watch else 130)
        writer.write(picture(7))
    summary = json.loads(Path(f"{predictions}.state/summary.json").read_text(encoding="utf-8"))
    assert (summary["predicted"], summary["quarantined"]) == (10, 1)
    assert [path.name for path in inbox.glob("*.png")] == ["slow.png"]
    os.utime(slow, (10**9, 10**9))
    assert crodobo(*usual, "-q")[0] == 0
    assert [row["file"] for row in rows(predictions)][-1] == "slow.png"


def test_watching_predicts_new_files_and_ends_with_a_summary(
    usual: list[str | Path], command: Command, inbox: Path, predictions: Path
) -> None:
    process = subprocess.Popen(
        command(*usual, "--watch", "--max-wait", "0.5"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: not list(inbox.glob("*.png")), lambda: process.poll() is None)
        for name in ("late.png", "0.png"):
            (inbox / f"{name}.part").write_bytes(picture(90))
            (inbox / f"{name}.part").rename(inbox / name)
        wait_until(lambda: not list(inbox.glob("*.png")), lambda: process.poll() is None)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == "\nStopping at the next safe point. Press Ctrl-C again to stop at once.\n"
    assert "IS DELETED" in out.splitlines()[0]
    assert "predicted 12 files, deleted" in " ".join(out.split())
    names = [row["file"] for row in rows(predictions)]
    assert sorted(names) == sorted([*(f"{number}.png" for number in range(10)), "late.png", "0.png"])


def test_a_second_process_on_the_inbox_is_refused(
    usual: list[str | Path], crodobo: Crodobo, inbox: Path, predictions: Path, tmp_path: Path
) -> None:
    from crodobo.inbox.arrivals import Inbox

    with Inbox(inbox, inbox / "quarantine").locked():
        status, _, errors = crodobo(*usual, "--predictions", tmp_path / "other.csv")
    assert (status, errors) == (2, f"error: Another process is taking files from {inbox}. Stop it first.\n")
    assert len(list(inbox.glob("*.png"))) == 11
