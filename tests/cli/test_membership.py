"""`crodobo audit membership` as a person meets it: what it writes and keeps, what it says, and how it goes on."""

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crodobo.audit.membership.findings import check_same_images
from crodobo.audit.membership.plan import ShadowPlan
from crodobo.data import load_benchmark
from crodobo.errors import BadCheckpoint

Crodobo = Callable[..., tuple[int, str, str]]
AUDIT = ("audit", "membership", "--methods", "source-only", "--runs", "4")
ATTACKS = ["loss", "entropy", "LiRA", "RMIA"]


@pytest.fixture(scope="module")
def audited(crodobo: Crodobo, tmp_path_factory: pytest.TempPathFactory, tiny: tuple[str, ...]) -> tuple[Path, str]:
    """An audit that was carried out, and what it printed; not to be changed: take a copy."""
    folder = tmp_path_factory.mktemp("membership") / "audited"
    status, out, errors = crodobo(*AUDIT, *tiny, "--out", folder)
    assert (status, errors) == (0, "")
    return folder, out


def test_the_audit_writes_numbers_a_table_and_a_figure(audited: tuple[Path, str]) -> None:
    folder, _ = audited
    files = {"membership.json", "membership.csv", "membership.md", "membership.png"}
    assert {path.name for path in folder.iterdir()} == files | {"shadows", "warm-starts", ".lock"}
    assert (folder / "membership.png").read_bytes().startswith(b"\x89PNG")
    with (folder / "membership.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [(row["method"], row["attack"]) for row in rows]
    assert names == [("source-only", attack) for attack in ATTACKS]
    data = json.loads((folder / "membership.json").read_text())
    for row in rows:
        estimates = data["methods"][row["method"]]["attacks"][row["attack"]]["estimates"]
        for name in ("auc", "tpr_at_0.001", "tpr_at_0.01"):
            assert 0 <= estimates[name]["low"] <= estimates[name]["high"] <= 1
            assert [row[f"{name}{end}"] for end in ("", "_low", "_high")] == [
                f"{value:.5f}" for value in estimates[name].values()
            ]
    assert (data["runs"], data["seed"], data["passes"]) == (4, 0, 1)
    assert data["methods"]["source-only"]["samples"] == 32, "two queries of eight for a run, and as many not in it"


def test_a_shadow_run_keeps_its_scores_but_no_weights(audited: tuple[Path, str]) -> None:
    shadows = audited[0] / "shadows"
    runs = {f"source-only-run{number:02d}" for number in range(4)}
    assert {path.name for path in shadows.iterdir()} == runs
    assert {path.name for path in shadows.glob("*/*")} == {"scores.safetensors", ".lock"}


def test_the_results_are_explained_in_words(audited: tuple[Path, str]) -> None:
    folder, out = audited
    words = json.loads((folder / "membership.json").read_text())["methods"]["source-only"]["in_words"]
    assert words in out
    assert words.endswith("This is indistinguishable from guessing.")
    text = " ".join(out.split())
    assert "With fewer than 16 shadow runs the figures are unreliable." in text
    assert "There are 64 non-members over all runs: 0.1 % are 0, 1 % are 1 false alarms." in text


def test_a_stopped_audit_goes_on_and_gives_the_same_numbers(
    audited: tuple[Path, str], tmp_path: Path, crodobo: Crodobo, tiny: tuple[str, ...]
) -> None:
    folder = shutil.copytree(audited[0], tmp_path / "copy")
    before = (folder / "membership.json").read_text()
    lost = folder / "shadows" / "source-only-run02" / "scores.safetensors"
    lost.unlink()
    (folder / "shadows" / "source-only-run03" / "scores.safetensors").write_bytes(b"cut short")
    (folder / "membership.json").unlink()
    status, out, errors = crodobo(*AUDIT, *tiny, "--out", folder)
    assert (status, errors) == (0, "")
    assert "5 runs including warm-ups, 3 already finished" in out
    assert lost.exists()
    assert (folder / "membership.json").read_text() == before


def test_other_settings_in_the_same_folder_are_refused(
    audited: tuple[Path, str], crodobo: Crodobo, tiny: tuple[str, ...]
) -> None:
    status, _, errors = crodobo(*AUDIT, *tiny, "--passes", "3", "--out", audited[0])
    assert status == 2
    assert "holds a shadow run with other settings: passes is 1 there and 3 here." in errors


def test_shadow_runs_of_changed_images_are_refused(audited: tuple[Path, str]) -> None:
    settings: dict[str, Any] = {"options": {"warmup": 1}, "run": {"queries": 2, "query_size": 8}}
    plan = ShadowPlan(audited[0], "glyphs", ("source-only",), runs=4, **settings)
    check_same_images(plan, load_benchmark("glyphs"))
    with pytest.raises(BadCheckpoint, match="The images or their labels changed since the run in"):
        check_same_images(plan, replace(load_benchmark("glyphs"), stamp="another"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("--runs", "15"),
            "error: There cannot be 15 shadow runs: they come in pairs, at least 4. 32 is a good number.",
        ),
        (
            ("--runs", "2"),
            "error: There cannot be 2 shadow runs: they come in pairs, at least 4. 32 is a good number. (see",
        ),
        (("--methods", "crodobo,nobody"), "error: There is no method 'nobody'"),
        (
            ("--methods", "ent,ent"),
            "error: There is no method to attack, or one is named twice. Check the names. (see",
        ),
        (("--methods", "shot"), "error: There is no online form of shot."),
        (("--benchmark", "nothing"), "error: There is no benchmark 'nothing'. Choose glyphs or a preset, or "),
        (
            ("--backbone", "nothing"),
            "error: There is no backbone 'nothing'. Use small, a timm name, or torchvision",
        ),
        (("--query-size", "0"), "error: query_size cannot be 0"),
    ],
)
def test_wrong_arguments_give_one_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, crodobo: Crodobo
) -> None:
    status, _, errors = crodobo("audit", "membership", *arguments, "--out", tmp_path / "out")
    assert status == 2
    assert errors.startswith(sentence)
    assert not (tmp_path / "out").exists()
