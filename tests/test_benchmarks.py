"""The scripts in benchmarks/ run."""

import dataclasses
import importlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crodobo.errors import CrodoboError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_speed_writes_times_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    speed = importlib.import_module("speed")
    small = dataclasses.replace(speed.CASES["glyphs"], shape=(1, 16, 16), query=8, memory_query=8)
    monkeypatch.setitem(speed.CASES, "glyphs", small)
    out = tmp_path / "new" / "speed.json"
    arguments = ["--case", "glyphs", "--rounds", "1", "--queries", "10", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["speed.py", *arguments])
    speed.main()
    (result,) = json.loads(out.read_text())
    assert result["times"]["seconds_per_query"] > 0
    assert result["memory"]["late_queries"] == 10
    assert result["memory"]["late_mb"] > 50
    assert "compute floor" in capsys.readouterr().out


KILLED_WHILE_WRITING = """
import dataclasses, json, os, signal, sys
sys.path.insert(0, sys.argv.pop(1))
import streams

def append_or_die(file, record):
    if file.exists():
        with file.open("a") as lines:
            lines.write(json.dumps(record)[:100])
        os.kill(os.getpid(), signal.SIGKILL)
    append(file, record)

append, streams.append = streams.append, append_or_die
streams.PAIRS["glyphs"] = dataclasses.replace(streams.PAIRS["glyphs"], samples=128, options={"warmup": 1})
streams.main()
"""
TWO_CELLS = ["--pairs", "glyphs", "--orders", "by-class", "--sizes", "64", "--seeds", "0"]
TWO_CELLS += ["--methods", "no-adaptation,crodobo"]


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The matrix of streams with a short `glyphs`."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    module = importlib.import_module("streams")
    small = dataclasses.replace(module.PAIRS["glyphs"], samples=128, options={"warmup": 1})
    monkeypatch.setitem(module.PAIRS, "glyphs", small)
    return module


def run_streams(streams: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The exit status."""
    monkeypatch.setattr(sys, "argv", ["streams.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        streams.main()
    return int(end.value.code or 0)


def test_a_killed_matrix_of_streams_continues(
    streams: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = [sys.executable, "-c", KILLED_WHILE_WRITING, str(BENCHMARKS), *TWO_CELLS, "--output", str(tmp_path)]
    assert subprocess.run(script, check=False, capture_output=True).returncode == -signal.SIGKILL
    cells, table = tmp_path / "streams" / "cells.jsonl", tmp_path / "streams" / "table.md"
    first, half = cells.read_text().splitlines()
    assert json.loads(first)["method"] == "no-adaptation"
    assert not table.exists()

    assert run_streams(streams, monkeypatch, *TWO_CELLS, "--output", tmp_path) == 0
    assert "1 of 2 cells are finished already." in capsys.readouterr().out
    before, ignored, second = cells.read_text().splitlines()
    assert (before, ignored) == (first, half)
    record = json.loads(second)
    assert record["method"] == "crodobo"
    assert (record["samples"], record["queries"]) == (128, 2)
    assert record["one_pass"] is not None
    assert record["seconds_per_query"] > 0
    row = f"| glyphs | 64 | by-class | {100 * json.loads(first)['online']:.1f} | {100 * record['online']:.1f} |"
    assert row in table.read_text()
    assert (tmp_path / "streams" / "streams.png").read_bytes().startswith(b"\x89PNG")

    monkeypatch.setattr(streams, "measure", None)  # nothing is left to measure
    assert run_streams(streams, monkeypatch, *TWO_CELLS, "--output", tmp_path) == 0
    assert "2 of 2 cells are finished already." in capsys.readouterr().out


def test_a_matrix_of_streams_stops_with_a_sentence(
    streams: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(streams, "measure", interrupted)
    assert run_streams(streams, monkeypatch, *TWO_CELLS, "--output", tmp_path) == 130
    assert "Stopped. The same command continues" in capsys.readouterr().out


def test_a_cell_that_fails_does_not_end_the_others(
    streams: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail_once(cell: Any, *_: object) -> dict[str, Any]:
        if cell.method == "no-adaptation":
            raise CrodoboError("The data is gone.")
        return cell.identity | {"online": 0.5, "seconds_per_query": 0.1, "estimate": None}

    monkeypatch.setattr(streams, "measure", fail_once)
    assert run_streams(streams, monkeypatch, *TWO_CELLS, "--output", tmp_path) == 1
    out = capsys.readouterr().out
    assert "failed: The data is gone." in out
    assert "1 of 2 cells failed." in out
    assert len((tmp_path / "streams" / "cells.jsonl").read_text().splitlines()) == 1


def test_pairs_without_data_are_left_out(
    streams: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_streams(streams, monkeypatch, "--pairs", "photo-art", "--output", tmp_path) == 0
    out = capsys.readouterr().out
    assert "photo-art is left out: it needs --data and --weights." in out
    assert "There are no finished cells." in out


def test_the_table_of_streams_marks_where_the_default_is_worse(streams: ModuleType, tmp_path: Path) -> None:
    online = {"random": (0.5, 0.6, 0.7, 0.69), "by-class": (0.5, 0.1, 0.4, 0.47), "drift": (0.5, 0.1, None, 0.9)}
    methods = ("no-adaptation", "bn-statistics", "source-only", "crodobo")
    records = [
        streams.Cell("glyphs", order, 64, method, 0).identity | {"online": value, "estimate": None}
        for order, values in online.items()
        for method, value in zip(methods, values, strict=True)
        if value is not None
    ]
    table, _ = streams.write_report(records, tmp_path)
    text = table.read_text()
    assert "| glyphs | 64 | random | 50.0 | 60.0 | 70.0 | **69.0** |" in text
    assert "| glyphs | 64 | by-class | 50.0 | 10.0 | 40.0 | 47.0 ▼ |" in text
    assert "| glyphs | 64 | drift | 50.0 | 10.0 | – | 90.0 |" in text  # not judged without all references
    assert "(1 of 2 streams)" in text


def test_estimates_of_single_images_are_compared_over_windows(streams: ModuleType) -> None:
    cells = importlib.import_module("streams_cells")
    rows = [SimpleNamespace(samples=1, correct=number % 2, estimate=0.6) for number in range(128)]
    mean, error = cells.estimates(rows)
    assert mean == pytest.approx(0.6)
    assert error == pytest.approx(0.1)
    assert cells.estimates([SimpleNamespace(samples=1, correct=1)]) == (None, None)
