"""The scripts in benchmarks/ run."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

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
