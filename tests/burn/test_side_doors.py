"""Side doors through which part of a query could leak: a kept error, a log, a file."""

import gc
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from crodobo.audit.disk import audit_disk
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.errors import CrodoboError
from crodobo.methods import CroDoBo
from crodobo.session.events import Log

Crodobo = Callable[..., tuple[int, str, str]]


def living_tensors() -> list[Tensor]:
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]


class Broken(Exception):
    """An error that neither torch nor crodobo raises."""


@pytest.mark.parametrize("learners", [1, 2], ids=["in sequence", "in threads"])
def test_a_kept_error_keeps_no_tensor_of_the_step(source: Source, learners: int) -> None:
    method = CroDoBo(source, learners=learners, warmup=0, threads=1, plain=True)

    def update(*_: object) -> bool:
        raise Broken

    method.learners[0].update = update  # type: ignore[method-assign]
    before = {id(tensor) for tensor in living_tensors()}
    kept: list[BaseException] = []
    try:
        with Query(torch.rand(6, 1, 16, 16)) as query:
            method.step(query)
    except Broken as error:
        kept.append(error)
    assert kept
    frame_variables = []
    trace = kept[0].__traceback__
    assert trace
    trace = trace.tb_next  # skip the frame of this test
    while trace:
        frame_variables += list(trace.tb_frame.f_locals)
        trace = trace.tb_next
    assert frame_variables == []
    new = [tensor for tensor in living_tensors() if id(tensor) not in before]
    assert not any(tensor.detach().any() for tensor in new if tensor.ndim > 1 and len(tensor) == 6), "views are zeros"


def test_frames_of_an_errors_cause_are_cleared_too() -> None:
    def fail(batch: Tensor) -> None:
        try:
            raise Broken
        except Broken as error:
            raise ValueError from error

    with pytest.raises(ValueError) as caught, Query(torch.rand(2, 1, 8, 8)) as query:  # noqa: PT011
        fail(query.images)
    cause = caught.value.__cause__
    assert cause
    assert cause.__traceback__
    assert cause.__traceback__.tb_frame.f_locals == {}


@pytest.mark.parametrize(
    "fields",
    [
        {"file": "patient.png"},
        {"samples": "patient.png"},
        {"end": "patient.png"},
        {"kept": float("nan")},
        {"samples": -1},
        {"seconds": [0.1, 0.2]},
        {"burn": 0.25},
    ],
    ids=str,
)
def test_a_log_refuses_unknown_fields_and_values(fields: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with Log(path) as log, pytest.raises(CrodoboError, match=r"^The event log has no ") as refusal:
        log.write("query", **fields)
    assert "patient" not in str(refusal.value)
    assert path.read_bytes() == b""


def test_a_log_refuses_unknown_events() -> None:
    with Log() as log, pytest.raises(CrodoboError, match="no such value for `event`"):
        log.write("a patient came")


def test_no_file_left_behind_contains_an_image_of_the_inbox(
    tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output, state, cache and temporary folder are clean. A stray copy is found."""
    random = np.random.default_rng(0)
    for folder, count in (("public/a", 6), ("public/b", 6), ("inbox", 8), ("private", 0)):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(random.integers(0, 256, (20, 20, 3), dtype=np.uint8))
            image.save(tmp_path / folder / f"{number}.png")
    for image_file in (tmp_path / "inbox").iterdir():
        (tmp_path / "private" / image_file.name).write_bytes(image_file.read_bytes())
    left = tmp_path / "left"
    (left / "temporary").mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(left / "temporary"))
    monkeypatch.setenv("CRODOBO_CACHE", str(left / "cache"))
    monkeypatch.chdir(left)
    status, _, errors = crodobo(
        *("adapt", "--source", tmp_path / "public", "--inbox", tmp_path / "inbox", "--predictions", "predictions.csv"),
        *("--query-size", "4", "--image-size", "16", "--warmup", "1", "--checkpoint-every", "1", "--log", "log.jsonl"),
    )
    assert (status, errors) == (0, "")
    assert list((tmp_path / "inbox").glob("*.png")) == []

    report = audit_disk(left, [tmp_path / "private"], sizes=[16])
    assert report.found == []
    files = [path for path in left.rglob("*") if path.is_file()]
    assert {"ledger.jsonl", "predictions.csv", "log.jsonl", "checkpoint.safetensors"} <= {path.name for path in files}
    assert any((left / "cache").rglob("*")), "the cache holds the public source"

    events = [json.loads(line) for line in (left / "log.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events if event["event"] != "checkpoint"] == [
        "started",
        "query",
        "query",
        "ended",
    ]
    ended = {"event": "ended", "end": "finished", "query": 2, "files": 8, "quarantined": 0}
    assert events[-1] | {"time": ""} == ended | {"time": ""}
    assert not any(".png" in line for line in (left / "log.jsonl").read_text().splitlines())

    (left / "stray.bin").write_bytes((tmp_path / "private" / "0.png").read_bytes())
    assert not audit_disk(left, [tmp_path / "private"], sizes=[16]).sound
