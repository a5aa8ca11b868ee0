"""A comparison that is stopped or killed leaves nothing running, and the same command continues to the same table."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from crodobo.session.checkpoint import NAME

Crodobo = Callable[..., tuple[int, str, str]]
Start = Callable[..., "subprocess.Popen[str]"]

# Two runs that take long enough to be stopped halfway.
LONG = ("compare", "--methods", "source-only,crodobo", "--seeds", "0", "--queries", "20", "--query-size", "8")
LONG = (*LONG, "--warmup", "2")


@pytest.fixture(scope="module")
def undisturbed(crodobo: Crodobo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same comparison without a stop."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert crodobo(*LONG, "--out", folder, "-q")[0] == 0
    return folder


@pytest.fixture
def start(command: Callable[..., list[str]]) -> Iterator[Start]:
    """Start a command in a session of its own, where Ctrl-C works as in a terminal."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str | Path) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may have handed down another
        )
        started.append(process)
        return process

    yield call
    for process in started:
        for left in members(process.pid):
            os.kill(left, signal.SIGKILL)
        process.communicate()


def members(session: int) -> list[int]:
    """The processes of a session, without zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session, *_ = stat.read_text().rsplit(")", 1)[1].split()
        except (OSError, ValueError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def wait_for_the_end(session: int, seconds: float) -> None:
    """Wait until no process of a session is left."""
    end = time.monotonic() + seconds
    while left := members(session):
        assert time.monotonic() < end, f"{left} still run"
        time.sleep(0.05)


def check_same_results(folder: Path, undisturbed: Path) -> None:
    assert (folder / "table.csv").read_text() == (undisturbed / "table.csv").read_text()
    for run in ("source-only-seed0", "crodobo-seed0"):
        there, here = ((each / "runs" / run / "predictions.csv").read_text() for each in (undisturbed, folder))
        assert here == there
    assert not list(folder.glob(f"runs/*/{NAME}"))


def test_ctrl_c_stops_in_order_and_the_same_command_continues(
    start: Start, undisturbed: Path, tmp_path: Path, crodobo: Crodobo
) -> None:
    process = start(*LONG, "--out", tmp_path, "--jobs", "1")
    wait_until((tmp_path / "runs" / "crodobo-seed0" / NAME).exists, process)
    assert len(members(process.pid)) >= 3, "the command, its fork server and a run"
    process.send_signal(signal.SIGINT)
    asked = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - asked < 15
    assert process.returncode == 130
    assert errors.count("\n") == 3, "an empty line, what Ctrl-C does, and how to continue"
    assert errors.endswith("Stopped. The same command continues from here.\n")
    wait_for_the_end(process.pid, seconds=5)
    assert not (tmp_path / "runs" / "crodobo-seed0" / "result.json").exists(), "the signal must come before the end"
    status, out, _ = crodobo(*LONG, "--out", tmp_path)
    assert status == 0
    assert "3 runs including warm-ups, 1 already finished" in out
    check_same_results(tmp_path, undisturbed)


def test_a_killed_command_leaves_no_process_and_the_same_command_continues(
    start: Start, undisturbed: Path, tmp_path: Path, crodobo: Crodobo
) -> None:
    process = start(*LONG, "--out", tmp_path, "--jobs", "2")
    checkpoints = [tmp_path / "runs" / run / NAME for run in ("crodobo-seed0", "source-only-seed0")]
    results = [path.with_name("result.json") for path in checkpoints]
    wait_until(lambda: all(a.exists() or b.exists() for a, b in zip(checkpoints, results, strict=True)), process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert members(process.pid), "the runs must outlive their parent at first, or nothing is tested"
    wait_for_the_end(process.pid, seconds=10)
    assert not results[0].exists(), "the kill must come before the end"
    assert crodobo(*LONG, "--out", tmp_path, "-q")[0] == 0
    check_same_results(tmp_path, undisturbed)
    data = [json.loads((folder / "comparison.json").read_text()) for folder in (undisturbed, tmp_path)]
    accuracies = [
        {name: entry["online"]["0"]["online_accuracy"] for name, entry in each["entries"].items()} for each in data
    ]
    assert accuracies[0] == accuracies[1]
