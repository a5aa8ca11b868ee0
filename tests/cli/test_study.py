"""`crodobo study`: each layout end to end, and its errors."""

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from crodobo.evaluate.comparison.studies import LAMBDAS, STUDIES

Crodobo = Callable[..., tuple[int, str, str]]
FILES = {"table.csv", "table.md", "table.tex", "costs.csv", "costs.md"}
FILES |= {"streaming.png", "comparison.json", "report.html", ".lock"}


@pytest.fixture
def study(crodobo: Crodobo, tiny: tuple[str, ...], tmp_path: Path) -> Callable[[str], list[dict[str, str]]]:
    """Run a study with one seed and return the rows of its table."""

    def call(name: str) -> list[dict[str, str]]:
        status, _, errors = crodobo("study", name, "--seeds", "0", *tiny, "--lr", "0.01", "--out", tmp_path, "-q")
        assert (status, errors) == (0, "")
        sweep = {"sensitivity.png"} if STUDIES[name].layout == "sweep" else set()
        assert {path.name for path in tmp_path.iterdir()} == FILES | sweep | {"runs", "warm-starts"}
        assert json.loads((tmp_path / "comparison.json").read_text())["study"] == name
        assert STUDIES[name].shows[1:] in (tmp_path / "report.html").read_text()
        with (tmp_path / "table.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    return call


def accuracies(folder: Path, key: str) -> dict[str, float]:
    """A number of every run with seed 0, in percent, by entry key."""
    found = {}
    for path in folder.glob("runs/*/result.json"):
        found[path.parent.name.removesuffix("-seed0")] = 100 * json.loads(path.read_text())[key]
    return found


def test_a_study_of_rows(
    study: Callable[[str], list[dict[str, str]]], tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    rows = study("bootstrap")
    online = accuracies(tmp_path, "online_accuracy")
    assert [(row["variant"], row["online"]) for row in rows] == [
        ("w/o CroDoBo", f"{online['single']:.4f}"),
        ("w/ CroDoBo", f"{online['crodobo']:.4f}"),
    ]
    assert rows[0].keys() == {"variant", "mark", "online", "one_pass"}
    result = tmp_path / "runs" / "crodobo-seed0" / "result.json"
    before = result.stat().st_mtime_ns
    same = (
        "compare",
        "--plain",
        "--methods",
        "crodobo",
        "--seeds",
        "0",
        *tiny,
        "--lr",
        "0.01",
        "--out",
        tmp_path,
        "-q",
    )
    assert crodobo(*same)[0] == 0
    assert result.stat().st_mtime_ns == before, "`compare` keeps a run of `study` with the same settings"


def test_a_study_of_a_setting(study: Callable[[str], list[dict[str, str]]], tmp_path: Path) -> None:
    rows = study("lambda")
    keys = ["0.1", "0.4", "0.5", "0.8", "1.0"]
    for row, key in zip(rows, ("online_accuracy", "one_pass_accuracy"), strict=True):
        measured = accuracies(tmp_path, key)
        assert [row[name] for name in keys] == [f"{measured[name]:.4f}" for name in keys]
        assert row["mean"] == f"{statistics.fmean(measured.values()):.4f}"
        assert row["variance"] == f"{statistics.variance(measured.values()):.4f}"
    assert [row["metric"] for row in rows] == ["online", "one-pass"]
    for name, lam in zip(keys, LAMBDAS, strict=True):
        result = json.loads((tmp_path / "runs" / f"{name}-seed0" / "result.json").read_text())
        assert result["settings"]["options"]["lam"] == lam == float(name)
    assert (tmp_path / "sensitivity.png").read_bytes().startswith(b"\x89PNG")


def test_a_study_of_streams(study: Callable[[str], list[dict[str, str]]], tmp_path: Path) -> None:
    rows = study("randomness")
    online = accuracies(tmp_path, "online_accuracy")
    assert [row["method"] for row in rows] == ["cdan", "crodobo"]
    for row in rows:
        values = [online[f"{row['method']}-order{order}"] for order in range(5)]
        assert [row[f"rand {order}"] for order in range(5)] == [f"{value:.4f}" for value in values]
        assert row["variance"] == f"{statistics.variance(values):.4f}"
    streams = set()
    for method in ("cdan", "crodobo"):
        for order in range(5):
            folder = tmp_path / "runs" / f"{method}-order{order}-seed0"
            assert json.loads((folder / "result.json").read_text())["settings"]["stream_seed"] == order
            with (folder / "predictions.csv").open() as file:
                streams.add((order, tuple(row["sample"] for row in csv.DictReader(file))))
    assert len(streams) == 5, "both methods meet the same five orders"
    assert len(list((tmp_path / "warm-starts").glob("*.safetensors"))) == 1


def test_the_list_names_every_study(crodobo: Crodobo) -> None:
    status, out, _ = crodobo("study", "--list")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines() if not line.startswith(" ")] == list(STUDIES)
    assert all(f"{len(study.entries)} runs for each seed" in " ".join(out.split()) for study in STUDIES.values())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "error: No study is named. Choose one of bootstrap, objectives, continual, randomness, pseudo-labels, "),
        (["weather"], "error: There is no study 'weather'. Choose one of bootstrap, objectives, "),
        (["bootstarp"], "error: There is no study 'bootstarp'. Did you mean bootstrap?"),
        (["tau", "--seeds", "x"], "error: seeds cannot be x: it must be a valid integer. (see --seeds)"),
        (["tau", "--benchmark", "visda"], "error: There is no benchmark 'visda'. Choose glyphs or a preset, or "),
        (["tau", "--sedes", "0"], "error: There is no option --sedes. Did you mean --seeds?"),
        (["tau", "--queries", "0"], "error: queries cannot be 0"),
    ],
)
def test_a_wrong_argument_gives_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, crodobo: Crodobo
) -> None:
    status, out, errors = crodobo("study", *arguments, "--out", tmp_path / "new")
    assert (status, out) == (2, "")
    assert errors.startswith(sentence)
    assert errors.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_the_study_of_orders_refuses_a_stream(crodobo: Crodobo, tiny: tuple[str, ...], tmp_path: Path) -> None:
    status, _, errors = crodobo("study", "orders", "--stream", "drift", *tiny, "--out", tmp_path)
    assert status == 2
    assert "The study orders has streams of its own. Leave the stream's order out. (see --stream)" in errors
