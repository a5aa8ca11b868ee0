"""Adapting to an inbox: each image is predicted once and deleted after, whatever happens in between."""

import contextlib
import csv
import errno
import json
import multiprocessing
import os
import random
import re
import runpy
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
import torch
from PIL import Image

from crodobo.audit.ledger import audit_ledger
from crodobo.config import DataSettings
from crodobo.core.observer import Observer
from crodobo.core.prediction import Adaptation
from crodobo.errors import BadCheckpoint, BadData, BadSettings, CrodoboError, Interrupted
from crodobo.guard.guard import Guard
from crodobo.inbox.adapt import adapt
from crodobo.inbox.arrivals import Inbox
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.stream import Stream
from crodobo.inbox.walk import Arrival
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import Ledger, digest_of
from crodobo.ledger.signing import load_public_key, make_key_pair
from crodobo.nn.learner import Learner
from crodobo.session.checkpoint import NAME
from crodobo.session.stop import Stop
from crodobo.storage.lock import LOCK_FILE
from crodobo.storage.tensors import load_tensors

Picture = Callable[[int], bytes]
Put = Callable[..., Path]
Make = Callable[..., AdaptSettings]
Rows = Callable[[Path], list[dict[str, str]]]


def remaining(inbox: Path) -> list[str]:
    """Names of the files that are still in the inbox."""
    return sorted(path.name for path in inbox.iterdir() if path.name != "quarantine")


def quarantined(inbox: Path) -> list[str]:
    """Names of the files in the quarantine, without the reasons."""
    return sorted(path.name for path in (inbox / "quarantine").iterdir() if not path.name.endswith(".reason.txt"))


def receipts(ledger: Path) -> list[dict[str, Any]]:
    """The ledger entries of queries. An unfinished last line is ignored."""
    lines = ledger.read_bytes().splitlines(keepends=True) if ledger.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [entry for entry in entries if entry["kind"] == "query"]


class Notes(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


class Background(Stop):
    """Adapting in a thread, until it is asked to stop."""

    def __init__(self) -> None:
        super().__init__()
        self.result: Any = None
        self._thread: threading.Thread | None = None

    def start(self, settings: AdaptSettings) -> None:
        def work() -> None:
            try:
                self.result = adapt(settings)
            except BaseException as error:
                self.result = error

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.result is None, self.result
            assert time.monotonic() < end, "the condition is not met in time"
            time.sleep(0.01)

    def end(self) -> Any:
        """Wait for the end without a stop. Returns the summary or the error."""
        assert self._thread
        self._thread.join(20)
        assert not self._thread.is_alive(), "the thread does not end"
        return self.result

    def stop(self) -> Any:
        self.request()
        return self.end()


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch, module: ModuleType, impatient: None) -> Iterator[Background]:
    there = Background()
    monkeypatch.setattr("crodobo.session.session.StopSignal", lambda: there)
    yield there
    there.request()


def test_every_image_is_predicted_once_and_deleted(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path
) -> None:
    for number in range(20):
        put(f"{number}.png", picture(number), age=1000 - number)
    settings = make(method="crodobo")
    summary = adapt(settings)
    rows = rows_of(settings.predictions)
    assert [row["file"] for row in rows] == [f"{number}.png" for number in range(20)]
    assert [row["query"] for row in rows] == ["1"] * 8 + ["2"] * 8 + ["3"] * 4
    assert remaining(inbox) == quarantined(inbox) == []
    assert json.loads((settings.state / "summary.json").read_text()) == summary
    assert (summary["predicted"], summary["queries"], summary["queries_in_all"]) == (20, 3, 3)
    assert summary["classes"] == Counter(row["label"] for row in rows)
    assert summary["mean_confidence"] == pytest.approx(np.mean([float(row["confidence"]) for row in rows]), abs=1e-6)
    assert set(summary["classes"]) <= {"upper left", "upper right", "lower left", "lower right"}
    assert summary["seconds_per_query"] > 0
    assert summary["files_per_second"] > 0
    assert {path.name for path in settings.state.iterdir()} == {
        LOCK_FILE,
        NAME,
        LEDGER,
        "model.safetensors",
        "summary.json",
    }


def test_a_second_session_continues_the_learners_and_the_query_numbers(
    make: Make, put: Put, picture: Picture, rows_of: Rows
) -> None:
    for number in range(3):
        put("a.png", picture(number), age=1000 - number)
        notes = Notes()
        summary = adapt(make(method="source-only", checkpoint_every=1), observer=notes)
    assert notes.texts[1:] == ["Going on with learners that have learned from 2 queries."]
    assert summary["queries_in_all"] == 3
    assert [row["query"] for row in rows_of(make().predictions)] == ["1", "2", "3"]


def leave_out(learner: Learner, *_: object) -> bool:
    """Skip an update, as after a loss that is not finite."""
    learner.forget()
    return False


def test_skipped_updates_predicted_only_queries_and_restores_are_counted_and_noted(
    make: Make, put: Put, picture: Picture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(
        [Adaptation(), Adaptation(predicted_only="few classes"), Adaptation(restored="the learners had collapsed")]
    )
    monkeypatch.setattr(Guard, "before", lambda *_: next(found))
    monkeypatch.setattr(Learner, "update", leave_out)
    for number in range(20):
        put(f"{number}.png", picture(number))
    notes = Notes()
    summary = adapt(make(method="source-only"), observer=notes)
    assert notes.texts[0] == "source-only: 1 learner, 4 steps per query, source views: plain, learning rate 0.0008."
    assert notes.texts[1:] == ["Query 3: the learners had collapsed"]
    assert (summary["skipped_updates"], summary["predicted_only"]) == (2, {"few classes": 1})
    assert summary["restored_weights"] == notes.texts[1:]


def test_the_model_is_that_of_the_checkpoint_and_neither_is_closer_to_another_state_than_was_asked(
    make: Make, put: Put, picture: Picture
) -> None:
    models = []
    for _ in range(3):
        for number in range(16):  # two queries
            put(f"{number}.png", picture(number), age=1000 - number)
        notes = Notes()
        settings = make(method="crodobo", options={"plain": True}, checkpoint_every=3)
        adapt(settings, observer=notes)
        model, _ = load_tensors(settings.state / "model.safetensors")
        checkpoint, header = load_tensors(settings.state / NAME)
        for name, value in model.items():
            learner, rest = name.split(".", 2)[1:]
            assert torch.equal(value, checkpoint[f"learners.{learner}.network.{rest}"]), name
        models.append((header["progress"]["queries"], notes.texts[-1]))
    assert models == [(0, "The last 2 learned queries are not in the checkpoint, because it would reveal so few.")] * 3
    for number in range(32):
        put(f"{number}.png", picture(number), age=1000 - number)
    adapt(settings)
    assert load_tensors(settings.state / NAME)[1]["progress"]["queries"] == 3


def test_an_empty_inbox_is_not_an_error(make: Make) -> None:
    summary = adapt(make())
    assert (summary["predicted"], summary["mean_confidence"], summary["seconds_per_query"]) == (0, None, None)


def test_probabilities_are_written_for_each_class(make: Make, put: Put, picture: Picture, rows_of: Rows) -> None:
    for number in range(5):
        put(f"{number}.png", picture(number))
    settings = make(probabilities=True)
    adapt(settings)
    for row in rows_of(settings.predictions):
        each = {name[2:-1]: float(value) for name, value in row.items() if name.startswith("p(")}
        assert len(each) == 4
        assert sum(each.values()) == pytest.approx(1, abs=1e-5)
        assert max(each, key=lambda name: each[name]) == row["label"]
        assert max(each.values()) == pytest.approx(float(row["confidence"]), abs=2e-6)


def test_files_that_cannot_be_decoded_are_quarantined_and_the_stream_goes_on(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path, tmp_path: Path
) -> None:
    put("empty.png", b"")
    put("text.png", b"no picture")
    put("half.png", picture(1)[:200])
    put(b"\xff,\"'\n.png", b"no picture")
    (inbox / "link.png").symlink_to(tmp_path / "elsewhere.png")
    (tmp_path / "elsewhere.png").write_bytes(picture(2))
    os.utime(inbox / "link.png", (1, 1), follow_symlinks=False)
    put("good.png", picture(3), age=10_000)
    put("good too.png", picture(4))
    summary = adapt(make())
    assert remaining(inbox) == []
    assert quarantined(inbox) == sorted(
        ["empty.png", "half.png", "link.png", "text.png", os.fsdecode(b"\xff,\"'\n.png")]
    )
    assert {row["file"] for row in rows_of(make().predictions)} == {"good.png", "good too.png"}
    assert (summary["predicted"], summary["quarantined"]) == (2, 5)
    reason = (inbox / "quarantine" / "empty.png.reason.txt").read_text()
    assert reason == "empty.png: it is empty\n"
    assert (tmp_path / "elsewhere.png").read_bytes() == picture(2), "the target of a link is not touched"


def test_strange_names_are_predicted_and_deleted(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path
) -> None:
    names = [b'a,"b"\n\r.png', b"\xff\xfe.png", "ä €.png".encode(), b" ", b"no suffix", b"x" * 255]
    for number, name in enumerate(names):
        put(name, picture(number))
    settings = make()
    adapt(settings)
    assert {unquote_to_bytes(row["file"]) for row in rows_of(settings.predictions)} == set(names)
    assert remaining(inbox) == []


def test_recursive_takes_files_from_subfolders_and_keeps_the_folders(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path
) -> None:
    put("a/b/1.png", picture(1))
    put("a/2.png", b"no picture")
    put("3.png", picture(3))
    adapt(make())
    assert remaining(inbox) == ["a"]
    adapt(make(recursive=True))
    assert {row["file"] for row in rows_of(make().predictions)} == {"3.png", "a/b/1.png"}
    assert quarantined(inbox) == ["a_2.png"]
    assert not [path for path in (inbox / "a").rglob("*") if path.is_file()]


def test_what_is_left_in_the_inbox_is_noted_and_counted(make: Make, put: Put, picture: Picture, inbox: Path) -> None:
    for name in ("a.png", "sub/b.png", "other/c.png", ".hidden.png", "d.png.part"):
        put(name, picture(1))
    os.mkfifo(inbox / "pipe")
    notes = Notes()
    summary = adapt(make(), observer=notes)
    left = {"sub-folders": 2, "hidden": 1, "unfinished names": 1, "pipes and devices": 1}
    assert (summary["predicted"], summary["left"]) == (1, left)
    (note,) = [text for text in notes.texts if text.startswith("Not read in the inbox: ")]
    assert all(f"{reason}: {number}" in note for reason, number in left.items())
    assert "sub-folders" not in adapt(make(recursive=True))["left"]


def test_hard_links_of_deleted_files_are_counted(
    make: Make, put: Put, picture: Picture, inbox: Path, tmp_path: Path
) -> None:
    for number in range(3):
        put(f"{number}.png", picture(number))
    os.link(inbox / "1.png", tmp_path / "elsewhere.png")
    summary = adapt(make())
    assert (summary["predicted"], summary["still_linked"]) == (3, 1)
    assert (tmp_path / "elsewhere.png").exists()


def test_names_of_the_same_file_are_predicted_once_each(
    make: Make, put: Put, picture: Picture, inbox: Path, rows_of: Rows
) -> None:
    """Deleting one name changes the status of the others."""
    put("0.png", picture(1))
    for number in range(1, 20):
        os.link(inbox / "0.png", inbox / f"{number}.png")
    assert adapt(make())["predicted"] == len(rows_of(make().predictions)) == 20
    assert remaining(inbox) == []


def test_predictions_and_state_are_for_their_owner_alone(make: Make, put: Put, picture: Picture) -> None:
    settings = make()
    settings.state.mkdir(parents=True, mode=0o755)
    put("a.png", picture(1))
    adapt(settings)
    assert settings.predictions.stat().st_mode & 0o777 == 0o600
    assert settings.state.stat().st_mode & 0o777 == 0o700


def test_the_stream_goes_on_after_a_spreadsheet_saved_the_predictions(
    make: Make, put: Put, picture: Picture, rows_of: Rows
) -> None:
    settings = make(keep_files=True)
    for name in ("a.png", "=1+1.png"):
        put(name, picture(1))
    adapt(settings)
    content = settings.predictions.read_bytes()
    rounded = re.sub(rb"\d{19}ns", b"1.79E+18", content, count=1).replace(b"\n", b"\r\n")
    settings.predictions.write_bytes(b"\xef\xbb\xbf" + rounded)
    notes = Notes()
    assert adapt(settings, observer=notes)["predicted"] == 1, "the file whose row no longer identifies it"
    assert any("A spreadsheet has rounded numbers in 1 rows" in text for text in notes.texts)
    assert adapt(settings)["predicted"] == 0


def test_kept_files_are_not_predicted_again(make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path) -> None:
    for number in range(10):
        put(f"{number}.png", picture(number))
    settings = make(keep_files=True)
    assert adapt(settings)["predicted"] == 10
    assert len(remaining(inbox)) == 10
    put("0.png", picture(100), age=500)
    put("new.png", picture(101))
    assert adapt(settings)["predicted"] == 2
    assert adapt(settings)["predicted"] == 0
    rows = rows_of(settings.predictions)
    assert Counter(row["file"] for row in rows) == Counter([f"{n}.png" for n in range(10)] + ["0.png", "new.png"])
    notes = Notes()
    summary = adapt(make(), observer=notes)
    assert (summary["predicted"], summary["deleted_late"], remaining(inbox)) == (0, 11, [])
    assert "Deleted 11 files that were predicted before the last stop." in notes.texts


def test_an_unfinished_row_is_removed_and_its_file_is_predicted_again(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path
) -> None:
    settings = make(keep_files=True)
    for number in range(8):
        put(f"{number}.png", picture(number))
    adapt(settings)
    os.truncate(settings.predictions, settings.predictions.stat().st_size - 5)
    summary = adapt(make())
    assert (summary["predicted"], summary["deleted_late"]) == (1, 7)
    assert sorted(row["file"] for row in rows_of(settings.predictions)) == [f"{number}.png" for number in range(8)]
    assert remaining(inbox) == []


def fill_the_disk_after(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Make the disk full in the middle of a row, once the file has this many rows."""
    write, real = PredictionFile._write, os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 50:
            return real(descriptor, content[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    def write_what_fits(self: PredictionFile, content: bytes) -> None:
        if self.rows < rows:
            return write(self, content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, content: full(descriptor, content[:80]))
            return write(self, content)

    monkeypatch.setattr(PredictionFile, "_write", write_what_fits)


def test_on_a_full_disk_no_file_without_a_prediction_is_deleted(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        put(f"{number:02}.png", picture(number), age=1000 - number)
    with monkeypatch.context() as patch:
        fill_the_disk_after(patch, rows=8)
        with pytest.raises(CrodoboError, match=r"No space left on device.*No image of this query was deleted"):
            adapt(make())
    assert [row["file"] for row in rows_of(make().predictions)] == [f"{number:02}.png" for number in range(8)]
    assert remaining(inbox) == [f"{number:02}.png" for number in range(8, 20)]
    summary = json.loads((make().state / "summary.json").read_text())
    assert (summary["end"], summary["predicted"], summary["left"]) == ("failed", 8, {"not predicted yet": 12})
    assert sum(entry["samples"] for entry in receipts(make().state / LEDGER)) == 8
    assert adapt(make())["predicted"] == 12
    assert [row["file"] for row in rows_of(make().predictions)] == [f"{number:02}.png" for number in range(20)]


def test_a_full_disk_also_ends_watching(
    make: Make, put: Put, picture: Picture, monkeypatch: pytest.MonkeyPatch, background: Background
) -> None:
    fill_the_disk_after(monkeypatch, rows=0)
    put("a.png", picture(1))
    background.start(make(watch=True, max_wait=0))
    assert "No space left on device" in str(background.end())


@pytest.mark.parametrize("name", ["session.checkpoint_writer.save_checkpoint", "inbox.summary.save_model"])
def test_a_state_folder_that_cannot_be_written_raises_an_error(
    name: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"crodobo.{name}", full)
    with pytest.raises(CrodoboError, match=r"could (not )?be written to .* \(No space left on device\)"):
        adapt(make())


def test_a_file_replaced_during_its_prediction_is_predicted_as_a_new_file(
    make: Make,
    put: Put,
    picture: Picture,
    rows_of: Rows,
    inbox: Path,
    monkeypatch: pytest.MonkeyPatch,
    background: Background,
) -> None:
    path = put("a.png", picture(1))
    append = PredictionFile.append

    def replace_then_append(self: PredictionFile, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        if not self.rows:
            other = path.with_name("other.tmp")
            other.write_bytes(picture(2))
            os.utime(other, (10**9, 10**9))
            other.replace(path)
        append(self, rows)

    monkeypatch.setattr(PredictionFile, "append", replace_then_append)
    settings = make(watch=True, max_wait=0)
    background.start(settings)
    background.until(lambda: not remaining(inbox))
    assert background.stop()["predicted"] == 2
    rows = rows_of(settings.predictions)
    assert [row["file"] for row in rows] == ["a.png", "a.png"]
    assert rows[1]["modified"] == "1000000000000000000ns"
    assert remaining(inbox) == []


def test_a_file_removed_during_its_prediction_keeps_its_row(
    make: Make, put: Put, picture: Picture, rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("a.png", picture(1))
    append = PredictionFile.append

    def remove_then_append(self: PredictionFile, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        path.unlink()
        append(self, rows)

    monkeypatch.setattr(PredictionFile, "append", remove_then_append)
    settings = make()
    assert adapt(settings)["predicted"] == 1
    assert [row["file"] for row in rows_of(settings.predictions)] == ["a.png"]


def test_images_are_predicted_as_they_arrive(
    make: Make, picture: Picture, rows_of: Rows, inbox: Path, background: Background
) -> None:
    settings = make(watch=True, max_wait=0.3)
    background.start(settings)
    for number in range(20):
        (inbox / f"{number}.png").write_bytes(picture(number))
        time.sleep(0.03)
    background.until(lambda: not remaining(inbox))
    (inbox / "late.png").write_bytes(picture(20))
    background.until(lambda: not remaining(inbox))
    (inbox / "late.png").write_bytes(picture(21))
    background.until(lambda: not remaining(inbox))
    summary = background.stop()
    rows = rows_of(settings.predictions)
    assert Counter(row["file"] for row in rows) == Counter([f"{n}.png" for n in range(20)] + ["late.png"] * 2)
    assert (summary["predicted"], summary["queries"]) == (22, int(rows[-1]["query"]))


def test_a_partial_query_waits_for_max_wait_and_a_full_one_does_not(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path, background: Background
) -> None:
    settings = make(watch=True, max_wait=2.0)
    for number in range(3):
        put(f"{number}.png", picture(number))
    started = time.monotonic()
    background.start(settings)
    background.until(lambda: not remaining(inbox))
    assert time.monotonic() - started >= 2
    for number in range(8):
        put(f"{number}.png", picture(10 + number))
    full = time.monotonic()
    background.until(lambda: not remaining(inbox))
    assert time.monotonic() - full < 2, "a full query does not wait"
    background.stop()
    assert Counter(row["query"] for row in rows_of(settings.predictions)) == {"1": 3, "2": 8}


def test_a_stop_keeps_images_without_a_prediction(
    make: Make, put: Put, picture: Picture, rows_of: Rows, inbox: Path, background: Background
) -> None:
    settings = make(watch=True, max_wait=1000)
    for number in range(11):
        put(f"{number}.png", picture(number), age=1000 - number)
    background.start(settings)
    background.until(lambda: len(remaining(inbox)) == 3)
    time.sleep(0.2)
    assert background.stop()["predicted"] == 8
    assert remaining(inbox) == ["10.png", "8.png", "9.png"]
    assert len(rows_of(settings.predictions)) == 8


@pytest.mark.parametrize("held", [True, False], ids=["with the file held open", "opened for each piece"])
def test_a_file_is_not_read_before_a_slow_writer_is_done(
    held: bool, make: Make, picture: Picture, rows_of: Rows, inbox: Path, background: Background
) -> None:
    settings = make(watch=True, max_wait=0)
    background.start(settings)
    content, path = picture(1), inbox / "slow.png"
    pieces = [content[start : start + 100] for start in range(0, len(content), 100)]
    with path.open("ab") if held else contextlib.nullcontext() as file:
        for piece in pieces:
            if file:
                file.write(piece)
                file.flush()
            else:
                with path.open("ab") as again:
                    again.write(piece)
            time.sleep(0.35)
        if file:
            time.sleep(0.8)
            assert path.exists(), "the file is complete, but its writer still has it open"
    background.until(lambda: not remaining(inbox))
    time.sleep(0.3)
    summary = background.stop()
    assert (summary["predicted"], summary["quarantined"]) == (1, 0)
    assert [row["bytes"] for row in rows_of(settings.predictions)] == [str(len(content))]


def test_a_new_file_that_cannot_be_decoded_is_tried_twice_and_then_quarantined(
    make: Make, inbox: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = Inbox.read

    def count(self: Inbox, arrival: Arrival) -> bytes:
        reads.append(arrival.name)
        return read(self, arrival)

    monkeypatch.setattr(Inbox, "read", count)
    (inbox / "a.png").write_bytes(b"no picture")
    started = time.monotonic()
    assert adapt(make())["quarantined"] == 1
    assert time.monotonic() - started > 0.6
    assert reads == ["a.png", "a.png"]


def test_a_file_with_a_future_time_is_predicted_after_it_settles(
    make: Make, put: Put, picture: Picture, inbox: Path, impatient: None
) -> None:
    put("a.png", picture(1), age=-(10**6))
    assert adapt(make())["predicted"] == 1
    assert remaining(inbox) == []


def test_watching_ends_with_an_error_when_the_inbox_vanishes(make: Make, inbox: Path, background: Background) -> None:
    settings = make(watch=True)
    background.start(settings)
    background.until(lambda: (settings.state / NAME).exists())
    inbox.rename(inbox.with_name("moved"))
    assert "is gone" in str(background.end())


def test_an_error_while_collecting_a_query_is_raised(
    make: Make, put: Put, monkeypatch: pytest.MonkeyPatch, picture: Picture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    put("a.png", picture(1))
    monkeypatch.setattr(Stream, "_take", fail)
    with pytest.raises(ZeroDivisionError):
        adapt(make())


def test_a_stop_before_the_end_raises_interrupted(
    make: Make, put: Put, picture: Picture, background: Background, inbox: Path
) -> None:
    background.request()
    put("a.png", picture(1))
    background.start(make())
    assert isinstance(background.end(), Interrupted)
    assert remaining(inbox) == ["a.png"]


def test_only_one_process_uses_an_inbox_a_state_or_a_file_of_predictions(
    make: Make, tmp_path: Path, inbox: Path, background: Background
) -> None:
    settings = make(watch=True)
    background.start(settings)
    background.until(lambda: (settings.state / NAME).exists())
    other = tmp_path / "other"
    other.mkdir()
    for different, sentence in (
        ({"predictions": tmp_path / "other.csv", "state": tmp_path / "other state"}, "taking files from"),
        ({"inbox": other, "quarantine": other / "quarantine"}, "Another process is writing"),
        ({"inbox": other, "quarantine": other / "quarantine", "state": tmp_path / "other state"}, "is writing to"),
    ):
        with pytest.raises(CrodoboError, match=sentence):
            adapt(make(**different))
    background.stop()


@pytest.mark.parametrize("where", ["predictions", "state", "source", "folder"])
def test_paths_of_outputs_and_sources_inside_the_inbox_are_refused(
    where: str, make: Make, inbox: Path, public: Path
) -> None:
    changes: dict[str, Any] = {"predictions": {"predictions": inbox / "p.csv"}, "state": {"state": inbox / "state"}}
    data = {"data": DataSettings.of(**{"source": public, where: inbox})} if where in ("source", "folder") else {}
    with pytest.raises(BadSettings, match="cannot be in the inbox"):
        adapt(make(**changes.get(where, {}), **data))


def test_an_inbox_that_holds_images_of_the_source_is_refused(
    make: Make, put: Put, picture: Picture, inbox: Path, public: Path, tmp_path: Path
) -> None:
    table = tmp_path / "source.csv"
    table.write_text("file,label\n" + "".join(f"inbox/{name}.png,{name}\n" for name in "ab"))
    data = [DataSettings.of(source=table, grey=True), DataSettings.of(source=tmp_path, grey=True)]
    for name in "ab":
        put(f"{name}.png", picture(1))
    for each in data:
        with pytest.raises(BadSettings, match="holds images of the source"):
            adapt(make(data=each))
    assert remaining(inbox) == ["a.png", "b.png"]


def test_a_checkpoint_of_other_settings_is_refused_unless_fresh(
    make: Make, put: Put, picture: Picture, inbox: Path, rows_of: Rows
) -> None:
    put("a.png", picture(1))
    adapt(make())
    put("b.png", picture(2))
    with pytest.raises(BadCheckpoint, match=r"seed is 0 there and 1 here. Use the same settings"):
        adapt(make(options={"seed": 1}))
    assert remaining(inbox) == ["b.png"]
    notes = Notes()
    summary = adapt(make(options={"seed": 1}), fresh=True, observer=notes)
    assert notes.texts[:1] == ["Starting over with new learners."]
    assert (summary["predicted"], summary["queries_in_all"]) == (1, 1)
    assert [(row["file"], row["query"]) for row in rows_of(make().predictions)] == [("a.png", "1"), ("b.png", "2")]


def test_a_damaged_checkpoint_is_refused_unless_fresh(make: Make) -> None:
    adapt(make())
    os.truncate(make().state / NAME, 1000)
    with pytest.raises(BadCheckpoint, match=r"damaged.*start over"):
        adapt(make())
    adapt(make(), fresh=True)


def test_a_checkpoint_is_refused_after_the_labels_of_the_source_changed(
    make: Make, public: Path, tmp_path: Path
) -> None:
    table = tmp_path / "source.csv"
    images = sorted(public.rglob("*.png"))
    data = DataSettings.of(source=table, grey=True)
    for labels, refused in ((("a", "b"), False), (("b", "a"), True)):
        lines = [f"{path},{labels[number % 2]}" for number, path in enumerate(images)]
        table.write_text("\n".join(["file,label", *lines]) + "\n")
        with pytest.raises(BadCheckpoint, match="labels have changed") if refused else contextlib.nullcontext():
            adapt(make(data=data))


def test_learners_can_be_kept_when_the_public_images_change_or_move(
    make: Make, put: Put, picture: Picture, public: Path, tmp_path: Path, rows_of: Rows
) -> None:
    first = shutil.copytree(public, tmp_path / "first")
    put("a.png", picture(1))
    adapt(make(method="source-only", checkpoint_every=1, data=DataSettings.of(source=first, grey=True)))
    moved = DataSettings.of(source=first.rename(tmp_path / "moved"), grey=True)
    with pytest.raises(BadCheckpoint, match=r"source is .* Keep the learners if the classes are the same") as raised:
        adapt(make(method="source-only", checkpoint_every=1, data=moved))
    assert "keep_learners" in raised.value.settings
    put("b.png", picture(2))
    summary = adapt(make(method="source-only", checkpoint_every=1, data=moved), keep_learners=True)
    assert (summary["predicted"], summary["queries_in_all"]) == (1, 2)
    (tmp_path / "moved" / "upper left" / "new.png").write_bytes(picture(50))
    put("c.png", picture(3))
    with pytest.raises(BadCheckpoint, match=r"have changed since .* Keep the learners"):
        adapt(make(method="source-only", checkpoint_every=1, data=moved))
    assert adapt(make(method="source-only", checkpoint_every=1, data=moved), keep_learners=True)["queries_in_all"] == 3
    assert adapt(make(method="source-only", checkpoint_every=1, data=moved))["queries_in_all"] == 3, (
        "the next start needs no option"
    )


def test_learners_are_not_kept_for_other_classes_or_settings(
    make: Make, put: Put, picture: Picture, public: Path, tmp_path: Path, inbox: Path
) -> None:
    adapt(make())
    put("a.png", picture(1))
    other = shutil.copytree(public, tmp_path / "other")
    (other / "upper left").rename(other / "somewhere else")
    with pytest.raises(BadCheckpoint, match="know other classes"):
        adapt(make(data=DataSettings.of(source=other, grey=True)), keep_learners=True)
    with pytest.raises(BadCheckpoint, match=r"seed is 0 there and 1 here\. Use the same settings"):
        adapt(make(options={"seed": 1}), keep_learners=True)
    assert remaining(inbox) == ["a.png"]


def test_no_pixels_are_left_on_disk(
    make: Make, put: Put, picture: Picture, inbox: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    secret = np.random.default_rng(3).integers(0, 256, (16, 16), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(secret).save(file, "BMP")
    for number in range(12):
        put(f"{number}.bmp", file.getvalue())
    adapt(make(method="crodobo", probabilities=True, checkpoint_every=1))
    assert remaining(inbox) == []
    traces = [file.getvalue()[-64:], secret[5].tobytes()]
    traces += [(secret[5, :6] / np.float32(scale)).astype(np.float32).tobytes() for scale in (1, 255)]
    looked_at = [path for folder in (tmp_path, cache) for path in folder.rglob("*") if path.is_file()]
    assert {"predictions.csv", NAME, LEDGER, "model.safetensors", "summary.json"} <= {path.name for path in looked_at}
    for path in looked_at:
        content = path.read_bytes()
        assert not any(trace in content for trace in traces), path
    put("x.bmp", file.getvalue())
    assert all(trace in (inbox / "x.bmp").read_bytes() for trace in traces[:2]), (
        "the traces are in the file itself, so the search can find them"
    )


# --- receipts ---


def test_each_query_has_a_receipt(make: Make, put: Put, picture: Picture, inbox: Path) -> None:
    for number in range(20):
        put(f"{number}.png", picture(number), age=1000 - number)
    settings = make(method="crodobo", options={"plain": True})  # it learns every query, so there are views to overwrite
    summary = adapt(settings)
    found = receipts(settings.state / LEDGER)
    assert [(entry["query"], entry["samples"]) for entry in found] == [(1, 8), (2, 8), (3, 4)]
    assert all(entry["wiped"] > 5 * entry["samples"] * 16 * 16 for entry in found), (
        "both the bytes and their float copies"
    )
    assert {entry["settings"] for entry in found} == {digest_of(summary["settings"])}
    content = (settings.state / LEDGER).read_text()
    assert not any(word in content for word in (".png", "inbox", "upper", str(inbox)))
    assert audit_ledger(settings.state / LEDGER).sound


def test_the_ledger_continues_over_sessions_and_keeps_its_key(
    make: Make, put: Put, picture: Picture, tmp_path: Path, rows_of: Rows
) -> None:
    make_key_pair(tmp_path / "key")
    for number, fresh in enumerate((False, False, True)):
        put("a.png", picture(number), age=1000 - number)
        adapt(make(sign_key=tmp_path / "key"), fresh=fresh)
    assert [entry["query"] for entry in receipts(make().state / LEDGER)] == [1, 2, 3]
    report = audit_ledger(make().state / LEDGER, public_key=load_public_key(tmp_path / "key.pub"))
    assert report.sound
    put("a.png", picture(9))
    with pytest.raises(CrodoboError, match=r"is signed\. Use its signing key"):
        adapt(make())
    assert len(rows_of(make().predictions)) == 3


def test_the_receipt_comes_after_the_predictions_and_the_deletion(
    make: Make, put: Put, picture: Picture, inbox: Path, rows_of: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make()
    seen: list[tuple[int, list[str]]] = []

    def look(*_: Any, **__: Any) -> None:
        seen.append((len(rows_of(settings.predictions)), remaining(inbox)))

    monkeypatch.setattr("crodobo.ledger.ledger.Ledger.burned", look)
    put("a.png", picture(1))
    adapt(settings)
    assert seen == [(1, [])]


def test_an_unwritable_ledger_stops_the_stream_and_the_audit_explains_the_gap(
    make: Make, put: Put, picture: Picture, rows_of: Rows
) -> None:
    for number in range(20):
        put(f"{number}.png", picture(number), age=1000 - number)
    settings, burned = make(), Ledger.burned

    def full(self: Ledger, **values: Any) -> None:
        if self.queries == 1:
            raise CrodoboError("no room")
        burned(self, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "burned", full)
        with pytest.raises(CrodoboError, match="no room"):
            adapt(settings)
    assert len(rows_of(settings.predictions)) == 16, "no query is taken after the failure"
    summary = json.loads((settings.state / "summary.json").read_text())
    assert (summary["end"], summary["predicted"], summary["without_receipt"]) == ("failed", 16, 8)
    adapt(settings)
    assert [entry["query"] for entry in receipts(settings.state / LEDGER)] == [1, 3]
    report = audit_ledger(settings.state / LEDGER)
    assert report.sound
    assert any("query 2 has predictions and no receipt" in text for text in report.noted)


def test_a_damaged_ledger_is_refused_before_a_file_is_taken(
    make: Make, put: Put, picture: Picture, inbox: Path
) -> None:
    adapt(make())
    ledger = make().state / LEDGER
    ledger.write_bytes(ledger.read_bytes().replace(b"header", b"footer"))
    put("a.png", picture(1))
    with pytest.raises(BadData, match="is damaged"):
        adapt(make())
    assert remaining(inbox) == ["a.png"]


# --- kills ---

FILES, CORRUPT = 800, 40
POINTS = [
    ("before the append", 1),
    ("after the append, before the delete", 1),
    ("in the middle of the deletes", 9),
    ("between reason and move", 1),
    ("in the middle of the rows", 1),
    ("before a torn row is cut off", 1),
    ("in the middle of the deletes", 1),
    ("in the middle of the reason", 1),
    ("after the move", 2),
    ("after the checkpoint", 1),
    ("after the append, before the delete", 2),
    ("before the receipt", 2),
    ("in the middle of the receipt", 1),
    ("after the receipt", 1),
]


@pytest.fixture(scope="module")
def start(cache: Path) -> Callable[..., tuple[BaseProcess, Any]]:
    """Start the command in a process that has the libraries loaded and is killed at a point."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crodobo.inbox.adapt"])

    def call(arguments: list[str], point: str = "never", number: int = 0) -> tuple[BaseProcess, Any]:
        ready = context.Event()
        job = (arguments, str(cache), point, number, ready)
        script = str(Path(__file__).with_name("killed_process.py"))
        process = context.Process(target=runpy.run_path, args=(script, {"job": job}, "killed_process"))
        process.start()
        return process, ready

    return call


def test_after_a_kill_at_any_moment_no_file_is_lost_or_predicted_twice(
    start: Callable[..., tuple[BaseProcess, Any]], put: Put, picture: Picture, public: Path, inbox: Path, tmp_path: Path
) -> None:
    chance = random.Random(11)
    corrupt = {f"{number:03}.png" for number in chance.sample(range(FILES), CORRUPT)}
    good = {f"{number:03}.png" for number in range(FILES)} - corrupt
    for number in range(FILES):
        name = f"{number:03}.png"
        put(name, picture(number)[: 150 if name in corrupt else None], age=10_000 - number)
    predictions = tmp_path / "out" / "predictions.csv"
    arguments = ["adapt", "--source", public, "--inbox", inbox, "--predictions", predictions, "--quiet", "--grey"]
    arguments += ["--image-size", "16", "--warmup", "0", "--query-size", "16", "--checkpoint-every", "2"]
    arguments += ["--method", "source-only", "--burn", "standard"]
    arguments = list(map(str, arguments))

    def predicted() -> list[str]:
        """Names of the files with a row, in order. An unfinished last row is ignored."""
        if not predictions.exists():
            return []
        whole = predictions.read_text().rpartition("\n")[0]
        return [row[0] for row in csv.reader(whole.splitlines()[1:])]

    def queries() -> Counter[int]:
        """How many rows each query has."""
        whole = predictions.read_text().rpartition("\n")[0] if predictions.exists() else ""
        return Counter(int(row[3]) for row in csv.reader(whole.splitlines()[1:]))

    kills: Counter[str] = Counter()
    ledger = Path(f"{predictions}.state") / LEDGER

    def check() -> None:
        rows, there, away = predicted(), set(remaining(inbox)), set(quarantined(inbox))
        assert len(rows) == len(set(rows)), "predicted twice"
        assert set(rows) | there >= good, "lost"
        assert away | there >= corrupt, "lost"
        assert not (set(rows) & corrupt)
        assert not (away & good)
        numbers = [entry["query"] for entry in receipts(ledger)]
        assert numbers == sorted(set(numbers)), "a query has one receipt"
        assert {entry["query"]: entry["samples"] for entry in receipts(ledger)}.items() <= queries().items()
        assert len(queries()) - len(numbers) <= sum(kills.values()), "a kill loses at most one receipt"

    at_events = [("stream", chance.randint(100, 1500)) for _ in range(5)]
    at_events += [("start", chance.randint(1, 1000)) for _ in range(2)]
    chance.shuffle(at_events)
    moments = POINTS + [("time", 0)] * 4 + at_events
    for point, number in moments:
        before = len(predicted())
        process, ready = start(arguments, "never" if point == "time" else point, number)
        if point == "time":
            assert ready.wait(60)
            soon = chance.random() < 0.3  # or else after the first rows
            while len(predicted()) == before and not soon:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.1))
            process.kill()
        process.join(60)
        assert process.exitcode in (-signal.SIGKILL, 0), (point, process.exitcode)
        kills[point] += process.exitcode == -signal.SIGKILL
        check()
    assert sum(kills.values()) == len(moments), f"a process ended before it was killed: {kills}"
    process, _ = start(arguments)
    process.join(60)
    assert process.exitcode == 0
    check()
    assert sorted(predicted()) == sorted(good)
    assert remaining(inbox) == []
    assert quarantined(inbox) == sorted(corrupt)
    assert len(list((inbox / "quarantine").iterdir())) == 2 * CORRUPT, "each has its reason, and there is nothing else"
    report = audit_ledger(ledger)
    assert report.sound, report.found
    without = queries().keys() - {entry["query"] for entry in receipts(ledger)}
    assert len(without) >= 3, "some kills lost a receipt, so the audit has something to explain"
    for number in without:
        assert any(f"query {number} has predictions and no receipt" in text for text in report.noted)


def test_a_source_with_a_link_into_the_inbox_is_refused(
    make: Make, put: Put, picture: Picture, inbox: Path, tmp_path: Path
) -> None:
    for number in range(8):
        put(f"{number}.png", picture(number))
        path = tmp_path / "linked" / "own" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(100 + number))
    (tmp_path / "linked" / "theirs").symlink_to(inbox)
    with pytest.raises(BadSettings, match="holds images of the source"):
        adapt(make(data=DataSettings(source=tmp_path / "linked", grey=True)))
    assert len(list(inbox.glob("*.png"))) == 8


@pytest.mark.parametrize("shuffle", [False, True])
def test_files_are_taken_by_age_or_shuffled(
    make: Make, put: Put, picture: Picture, shuffle: bool, rows_of: Callable[[Path], list[dict[str, str]]]
) -> None:
    for number in range(20):
        put(f"{number:02}.png", picture(number), age=3600 - number)
    settings = make(shuffle=shuffle)
    adapt(settings)
    order = [row["file"] for row in rows_of(settings.predictions)]
    assert (order == sorted(order)) != shuffle
    assert len(set(order)) == 20


def test_the_number_of_threads_may_change_between_sessions(make: Make, put: Put, picture: Picture) -> None:
    for number, threads in ((1, 1), (2, 2)):
        put(f"{number}.png", picture(number))
        assert adapt(make(options={"threads": threads}))["predicted"] == 1
