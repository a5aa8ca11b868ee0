"""`crodobo compare`: the files it writes, the runs it keeps, and its errors."""

import csv
import io
import json
import math
import shutil
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crodobo.cli.console import SteadyConsole
from crodobo.cli.progress import LiveView

Crodobo = Callable[..., tuple[int, str, str]]
METHODS = ("source-only", "ent", "crodobo")
THREE = ("compare", "--methods", ",".join(METHODS), "--seeds", "0,1")


@pytest.fixture
def copy(comparison: Path, tmp_path: Path) -> Path:
    """A copy of a finished comparison, to continue."""
    return shutil.copytree(comparison, tmp_path / "copy")


def result_of(folder: Path, name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "runs" / name / "result.json").read_text())
    return result


def table_of(folder: Path, name: str = "table.csv") -> dict[str, dict[str, str]]:
    with (folder / name).open(newline="") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def written(folder: Path) -> dict[str, int]:
    """The time when the result of each run was written."""
    return {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("runs/*/result.json")}


def as_cell(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def test_a_comparison_writes_all_its_files(comparison: Path) -> None:
    assert {path.name for path in comparison.iterdir()} == {
        *("table.csv", "table.md", "table.tex", "costs.csv", "costs.md", "streaming.png"),
        *("comparison.json", "report.html", "runs", "warm-starts", ".lock"),
    }
    runs = {f"{method}-seed{seed}" for method in METHODS for seed in (0, 1)}
    assert {path.name for path in (comparison / "runs").iterdir()} == runs
    files = {"result.json", "curve.csv", "predictions.csv", "curve.png", "report.html", "model.safetensors"}
    files |= {"ledger.jsonl", ".lock"}
    assert all({path.name for path in (comparison / "runs" / run).iterdir()} == files for run in runs)
    assert (comparison / "streaming.png").read_bytes().startswith(b"\x89PNG")
    page = (comparison / "report.html").read_text()
    assert all(f'href="runs/{run}/report.html"' in page for run in runs)
    assert "Failed runs" not in page


def test_the_table_shows_mean_and_deviation_of_the_runs(comparison: Path) -> None:
    table, costs = table_of(comparison), table_of(comparison, "costs.csv")
    assert list(table) == list(costs) == list(METHODS)
    for method in METHODS:
        results = [result_of(comparison, f"{method}-seed{seed}") for seed in (0, 1)]
        for column, key in (("online", "online_accuracy"), ("one_pass", "one_pass_accuracy")):
            values = [100 * result[key] for result in results]
            assert table[method][column] == as_cell(statistics.fmean(values))
            assert table[method][f"{column}_sd"] == as_cell(statistics.stdev(values))
        for name in "0123456789":
            values = [100 * value for result in results if (value := result["per_class_accuracy"][name]) is not None]
            assert table[method][f"class_{name}"] == as_cell(statistics.fmean(values) if values else None)
        assert costs[method]["seconds_per_query"] == as_cell(
            statistics.fmean(result["seconds_per_query"] for result in results)
        )
        assert costs[method]["peak_mb"] == as_cell(statistics.fmean(result["peak_rss_mb"] for result in results))
    assert len({row["online"] for row in table.values()}) > 1, "the methods must differ"


def test_the_json_file_holds_the_results_of_the_runs(comparison: Path) -> None:
    data = json.loads((comparison / "comparison.json").read_text())
    assert (data["study"], data["benchmark"], data["seeds"], data["problems"]) == (None, "glyphs", [0, 1], {})
    for method in METHODS:
        for seed in (0, 1):
            measured, run = data["entries"][method]["online"][str(seed)], result_of(comparison, f"{method}-seed{seed}")
            assert measured == {name: run[name] for name in measured}
            assert measured.keys() >= {"online_accuracy", "one_pass_accuracy", "per_class_accuracy"}


@pytest.mark.parametrize("method", METHODS)
def test_a_shared_warm_start_gives_the_same_predictions(
    method: str, comparison: Path, tiny: tuple[str, ...], tmp_path: Path, crodobo: Crodobo
) -> None:
    status, *_ = crodobo("run", "--method", method, "--seed", "1", *tiny, "--threads", "1", "--out", tmp_path, "-q")
    assert status == 0
    alone, among_others = json.loads((tmp_path / "result.json").read_text()), result_of(comparison, f"{method}-seed1")
    for key in ("online_accuracy", "one_pass_accuracy", "confusion_matrix", "settings"):
        assert alone[key] == among_others[key]
    there = comparison / "runs" / f"{method}-seed1" / "predictions.csv"
    assert (tmp_path / "predictions.csv").read_text() == there.read_text()


def test_each_seed_has_one_warm_start(comparison: Path) -> None:
    stored = {path.name for path in (comparison / "warm-starts").iterdir() if path.is_file()}
    assert stored == {"seed0.safetensors", "seed1.safetensors"}
    for seed in (0, 1):
        seconds = {result_of(comparison, f"{method}-seed{seed}")["warmup_seconds"] for method in METHODS}
        assert len(seconds) == 1, "all runs use the same warm-up"


def test_the_same_command_again_runs_nothing(comparison: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    before, table = written(comparison), (comparison / "table.csv").read_bytes()
    status, out, _ = crodobo(*THREE, *tiny, "--out", comparison)
    assert status == 0
    assert "8 runs including warm-ups, 8 already finished" in out
    assert written(comparison) == before
    assert len(before) == 6
    assert (comparison / "table.csv").read_bytes() == table
    assert "The terminal is too narrow for the classes. They are in the report." in out
    assert out.endswith(f"{comparison}/report.html\n")


def test_another_method_is_added_to_earlier_ones(copy: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    before = written(copy)
    status, out, _ = crodobo("compare", "--methods", "source-only,dan,crodobo", "--seeds", "0", *tiny, "--out", copy)
    assert status == 0
    assert "4 runs including warm-ups, 3 already finished" in out
    after = written(copy)
    assert after.keys() - before.keys() == {"dan-seed0"}
    assert {name: after[name] for name in before} == before
    assert list(table_of(copy)) == ["source-only", "dan", "ent", "crodobo"], "earlier methods stay in the table"
    assert "Run for fewer seeds: dan (1)." in (copy / "table.md").read_text()


def test_refused_settings_leave_the_table_unchanged(copy: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    table = (copy / "table.csv").read_bytes()
    status, _, errors = crodobo("compare", "--methods", "tent", *tiny, "--warmup", "7", "--out", copy)
    assert status == 2
    assert "other settings: warmup is 1 there and 7 here." in " ".join(errors.split())
    assert "--fresh" in errors
    assert (copy / "table.csv").read_bytes() == table


def test_another_seed_is_added_to_earlier_ones(copy: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    before = written(copy)
    status, out, _ = crodobo("compare", "--methods", "source-only,ent", "--seeds", "0,1,2", *tiny, "--out", copy)
    assert status == 0
    assert "9 runs including warm-ups, 6 already finished" in out
    after = written(copy)
    assert after.keys() - before.keys() == {"source-only-seed2", "ent-seed2"}
    assert {name: after[name] for name in before} == before
    values = [100 * result_of(copy, f"ent-seed{seed}")["online_accuracy"] for seed in (0, 1, 2)]
    assert table_of(copy)["ent"]["online_sd"] == as_cell(statistics.stdev(values))


def test_a_method_with_more_learners_than_the_warm_start_is_added_too(
    tmp_path: Path, comparison: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    assert crodobo("compare", "--methods", "source-only", "--seeds", "0", *tiny, "--out", tmp_path, "-q")[0] == 0
    before = written(tmp_path)
    more = ("compare", "--methods", "source-only,crodobo", "--seeds", "0", *tiny, "--out", tmp_path, "-q")
    status, _, errors = crodobo(*more)
    assert (status, errors) == (0, "")
    assert written(tmp_path).items() >= before.items()
    there, here = (result_of(folder, "crodobo-seed0") for folder in (comparison, tmp_path))
    assert here["confusion_matrix"] == there["confusion_matrix"]


def test_fresh_runs_everything_again(copy: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    before = written(copy)
    warm = (copy / "warm-starts" / "seed0.safetensors").stat().st_mtime_ns
    status, out, _ = crodobo("compare", "--methods", "ent", "--seeds", "0", *tiny, "--out", copy, "--fresh")
    assert status == 0
    assert "2 runs including warm-ups\n" in out
    assert written(copy)["ent-seed0"] > before["ent-seed0"]
    assert (copy / "warm-starts" / "seed0.safetensors").stat().st_mtime_ns > warm


def test_fresh_keeps_runs_that_do_not_belong_to_the_comparison(
    tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    mine = tmp_path / "runs" / "glyphs-crodobo-k2-seed0" / "result.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("{}")
    crodobo("compare", "--methods", "ent", "--seeds", "0", *tiny, "--out", tmp_path, "--fresh", "-q")
    assert mine.exists()


def test_other_settings_in_the_same_folder_are_refused(
    comparison: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    before, table = written(comparison), (comparison / "table.csv").read_bytes()
    status, _, errors = crodobo(*THREE, *tiny, "--warmup", "2", "--out", comparison)
    assert status == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert "other settings: warmup is 1 there and 2 here." in errors
    assert (written(comparison), (comparison / "table.csv").read_bytes()) == (before, table)


def test_the_refusal_of_other_settings_names_existing_options(
    comparison: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    _, _, errors = crodobo(*THREE, *tiny, "--lr", "0.1", "--out", comparison)
    assert "--fresh" in errors
    assert "--resume" not in errors


def test_a_single_run_is_not_overwritten(tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    (tmp_path / "result.json").write_text("{}")
    status, _, errors = crodobo(*THREE, *tiny, "--out", tmp_path)
    assert status == 2
    assert errors.startswith(f"error: {tmp_path} holds a single run. Choose another result folder.")
    assert errors.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"result.json", ".lock"}


def test_quiet_only_prints_the_folder(comparison: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    assert crodobo(*THREE, *tiny, "--out", comparison, "-q") == (0, f"{comparison}\n", "")


@pytest.fixture(scope="module")
def failed(
    comparison: Path, tiny: tuple[str, ...], command: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A comparison in which the folder of a method cannot be created, run in a process of its own."""
    folder = shutil.copytree(comparison, tmp_path_factory.mktemp("failed") / "copy")
    for seed in (0, 1):
        shutil.rmtree(folder / "runs" / f"ent-seed{seed}")
    (folder / "runs" / "ent-seed0").write_text("in the way")
    done = subprocess.run(
        command(*THREE, *tiny, "--out", folder), capture_output=True, text=True, timeout=120, check=False
    )
    return folder, done


def test_a_failed_method_is_named_and_the_others_go_on(
    failed: tuple[Path, subprocess.CompletedProcess[str]], comparison: Path
) -> None:
    folder, done = failed
    assert done.returncode == 2
    assert "error: 1 of 8 runs failed. The table shows the others. ent, seed 0: " in done.stderr
    assert "ent, seed 0: FAILED: " in done.stdout
    assert (folder / "runs" / "ent-seed0").read_text() == "in the way"
    table, whole = table_of(folder), table_of(comparison)
    assert {method: table[method]["online"] for method in ("source-only", "crodobo")} == {
        method: whole[method]["online"] for method in ("source-only", "crodobo")
    }
    assert table["ent"]["online"] == as_cell(100 * result_of(folder, "ent-seed1")["online_accuracy"])
    assert table["ent"]["online_sd"] == "", "one run has no deviation"
    page = (folder / "report.html").read_text()
    assert "Failed runs" in page
    assert "<b>ent, seed 0</b>" in page
    assert json.loads((folder / "comparison.json").read_text())["problems"].keys() == {"ent, seed 0"}


def test_the_reason_of_a_failure_is_one_line(
    failed: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = failed
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{folder}/runs/ent-seed0" in done.stderr
    assert "memory may have run out" not in done.stderr


def test_the_runs_of_a_failed_warm_up_are_named(tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo) -> None:
    (tmp_path / "warm-starts" / ".seed1" / ".lock").mkdir(parents=True)  # in the way of a file
    status, _, errors = crodobo("compare", "--methods", "source-only,ent", "--seeds", "0,1", *tiny, "--out", tmp_path)
    assert status == 2
    assert errors.startswith("error: 3 of 6 runs failed. The table shows the others. warm-up, seed 1: ")
    assert all(f"{name}, seed 1: Its warm-up failed: The folder" in errors for name in ("source-only", "ent"))
    assert table_of(tmp_path)["ent"]["online"] == as_cell(100 * result_of(tmp_path, "ent-seed0")["online_accuracy"])


@pytest.fixture(scope="module")
def offline(crodobo: Crodobo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both protocols, with six steps to the epoch."""
    folder = tmp_path_factory.mktemp("offline")
    few = ("--queries", "1", "--query-size", "2000", "--image-size", "8", "--warmup", "1", "--seeds", "0")
    status, _, errors = crodobo(
        "compare", "--methods", "source-only,shot", "--offline", "--epochs", "1", *few, "--out", folder, "-q"
    )
    assert (status, errors) == (0, "")
    return folder


def test_the_offline_protocol_has_a_column(offline: Path) -> None:
    table = table_of(offline)
    for method in ("source-only", "shot"):
        found = json.loads((offline / "offline" / f"{method}-seed0" / "offline.json").read_text())
        assert table[method]["offline"] == as_cell(100 * found["offline_accuracy"])
        assert found["epochs"] == 1
        assert 0 < found["offline_accuracy"] < 1
    assert (offline / "runs" / "source-only-seed0" / "result.json").exists()
    assert float(table["source-only"]["online"]) > 0
    assert "Offline: 1 epochs over both domains" in (offline / "table.md").read_text()


def test_methods_that_keep_target_data_are_marked_and_have_no_online_cells(offline: Path) -> None:
    shot = table_of(offline)["shot"]
    assert (shot["mark"], shot["online"], shot["one_pass"]) == ("†", "", "")
    found = json.loads((offline / "offline" / "shot-seed0" / "offline.json").read_text())["per_class_accuracy"]
    assert {name: shot[f"class_{name}"] for name in found} == {name: as_cell(100 * found[name]) for name in found}
    assert not (offline / "runs" / "shot-seed0").exists()
    markdown = (offline / "table.md").read_text()
    assert "| shot† |" in markdown
    assert "† keeps target data, so it does not compete" in markdown
    assert "shot†" in (offline / "report.html").read_text()


def test_offline_runs_are_kept_and_other_epochs_are_refused(offline: Path, crodobo: Crodobo) -> None:
    few = ("--queries", "1", "--query-size", "2000", "--image-size", "8", "--warmup", "1", "--seeds", "0")
    same = ("compare", "--methods", "source-only,shot", "--offline", *few, "--out", offline)
    status, out, _ = crodobo(*same, "--epochs", "1")
    assert status == 0
    assert "4 runs including warm-ups, 4 already finished" in out
    status, _, errors = crodobo(*same, "--epochs", "2")
    assert status == 2
    assert "holds a finished run with other settings. Choose another result folder, or start over." in errors


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--methods", "ent,magic"], "error: There is no method 'magic'. Choose one of source-only, dan"),
        (["--methods", ""], "error: There is no method ''"),
        (["--benchmark", "visda"], "error: There is no benchmark 'visda'. Choose glyphs or a preset, or "),
        (["--seeds", "a,b"], "error: seeds cannot be a: it must be a valid integer. (see --seeds)"),
        (["--seeds", ""], "error: seeds cannot be empty: it must be a valid integer. (see --seeds)"),
        (
            ["--seeds", "0,0"],
            "error: There are no seeds, or one is named twice. Give different numbers: 0,1,2.",
        ),
        (["--seeds", "-1"], "error: seed cannot be -1"),
        (
            ["--methods", "ent,ent"],
            "There is nothing to compare, or a method is named twice. Check the names. (see",
        ),
        (
            ["--methods", "shot"],
            "error: There is no online form of shot. Leave it out, or add the offline protocol.",
        ),
        (
            ["--methods", "ent,shot,atdoc-na"],
            "error: There is no online form of shot and atdoc-na. Leave them out",
        ),
        (["--query-size", "0"], "error: query_size cannot be 0"),
        (["--lr", "nan"], "error: lr cannot be nan"),
        (
            ["--stream", "sorted"],
            "error: There is no stream order 'sorted'. Choose random, by-class, drift or",
        ),
        (["--jobs", "0"], "error: jobs cannot be 0"),
        (["--tau", "0.5"], "error: There is no option --tau."),
    ],
)
def test_a_wrong_argument_gives_one_line_and_writes_nothing(
    arguments: list[str], sentence: str, tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    out = tmp_path / "new"
    status, told, errors = crodobo("compare", "--methods", "ent", "--seeds", "0", *tiny, "--out", out, *arguments)
    assert (status, told) == (2, "")
    assert sentence in " ".join(errors.split())
    assert "Traceback" not in errors
    assert errors.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seeds", "0,-1"], "error: seed cannot be -1"),
        (["--backbone", "resnet19"], "error: There is no backbone 'resnet19'. Did you mean resnet18 or "),
        (["--weights", "/nowhere.pth"], "error: There is no weights file /nowhere.pth."),
    ],
)
def test_an_error_that_affects_all_runs_is_reported_once(
    arguments: list[str], sentence: str, tmp_path: Path, tiny: tuple[str, ...], crodobo: Crodobo
) -> None:
    out = tmp_path / "new"
    status, _, errors = crodobo("compare", "--methods", "ent", "--seeds", "0", *tiny, "--out", out, *arguments)
    assert status == 2
    assert errors.startswith(sentence)
    assert errors.count("\n") == 1
    assert not out.exists()


def test_all_omits_methods_without_an_online_form() -> None:
    from crodobo.cli.compare import choose_methods
    from crodobo.methods import REGISTRY

    chosen, left_out = choose_methods("all", offline=False)
    assert left_out == ["shot", "atdoc-na", "covid-da"]
    assert sorted(chosen + left_out) == sorted(REGISTRY)
    assert choose_methods("all", offline=True) == (list(REGISTRY), [])
    assert choose_methods("paper", offline=False)[0] == [
        *("source-only", "dan", "coral", "dann", "ent", "mdd", "cdan", "crodobo")
    ]


def test_a_terminal_shows_a_bar_for_each_run_and_the_failures() -> None:
    output = io.StringIO()
    with LiveView(SteadyConsole(force_terminal=True, width=100, file=output)) as live:
        live.jobs(2, 1)
        live.job_started("ent, seed 0")
        live.job_progress("ent, seed 0", 3, 8, "online 12.5 %")
        shown = [(task.description, task.completed, task.total) for task in live.bars.tasks]
        assert shown == [("all runs", 1, 2), ("ent, seed 0", 3, 8)]
        live.job_ended("ent, seed 0", "no room")
        live.job_ended("warm-up, seed 0", "never started")
        assert [(task.description, task.completed) for task in live.bars.tasks] == [("all runs", 3)]
    assert "ent, seed 0: FAILED: no room" in output.getvalue()


def test_all_cells_of_the_table_are_percentages(comparison: Path) -> None:
    for row in table_of(comparison).values():
        values = [float(value) for name, value in row.items() if name not in ("method", "mark") and value]
        assert all(math.isfinite(value) and 0 <= value <= 100 for value in values)
