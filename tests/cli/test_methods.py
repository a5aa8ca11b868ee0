"""`crodobo methods`, and what `crodobo run` takes for a method: its settings, its objective, whether it may keep."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crodobo.methods import REGISTRY
from crodobo.methods.objective import PRESETS, TERMS

Crodobo = Callable[..., tuple[int, str, str]]
RUN = ("run", "--queries", "2", "--query-size", "24", "--warmup", "1", "--threads", "1", "-q")


def test_every_method_is_listed(crodobo: Crodobo) -> None:
    status, out, _ = crodobo("methods")
    assert status == 0
    lines = out.splitlines()
    named = {line.split()[0]: line for line in lines[1:] if not line.startswith(" ")}
    assert list(named) == list(REGISTRY)
    assert lines[0].split() == ["method", "protocols", "keeps", "target", "what", "it", "does"]
    for name, method in REGISTRY.items():
        assert ", ".join(method.protocols).split(",")[0] in named[name]
        assert (" yes " in named[name]) == method.keeps_target


def test_a_method_that_keeps_the_target_needs_burning_off(tmp_path: Path, crodobo: Crodobo) -> None:
    status, out, errors = crodobo(*RUN, "--method", "conda", "--out", tmp_path / "run")
    assert (status, out) == (2, "")
    assert errors.startswith("error: conda keeps target data, and burning is on. ")
    assert "or turn burning off if the target may be stored. (see --method, --burn)" in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "run").exists()

    assert crodobo(*RUN, "--method", "conda", "--burn", "off", "--out", tmp_path / "run")[0] == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["method"], result["settings"]["options"]["burn"]) == ("conda", "off")
    assert "burning was off" in result["protocol"]["burned"]


@pytest.mark.parametrize("burning", ["standard", "off"])
@pytest.mark.parametrize("method", [name for name, kind in REGISTRY.items() if "online" not in kind.protocols])
def test_a_method_without_an_online_form_is_refused(
    method: str, burning: str, tmp_path: Path, crodobo: Crodobo
) -> None:
    status, _, errors = crodobo(*RUN, "--method", method, "--burn", burning, "--out", tmp_path / "run")
    assert status == 2
    assert errors.startswith(f"error: {method} needs the whole target again and again, so it has no online form. ")
    assert "run this one in a comparison with the offline protocol" in errors
    assert not (tmp_path / "run").exists()


def test_any_setting_of_a_method_can_be_set(tmp_path: Path, crodobo: Crodobo) -> None:
    chosen = ("--method", "mdd", "--set", "gamma=2", "--set", "ceiling=0.5")
    assert crodobo(*RUN, *chosen, "--out", tmp_path)[0] == 0
    options = json.loads((tmp_path / "result.json").read_text())["settings"]["options"]
    assert (options["gamma"], options["ceiling"], options["weight"]) == (2.0, 0.5, 1.0)


def test_an_objective_can_be_named_or_spelled_out(tmp_path: Path, crodobo: Crodobo) -> None:
    written = {"named": "default", "spelled out": PRESETS["default"], "in turns": "mixmatch | entropy"}
    steep = (*RUN, "--plain", "--query-size", "8", "--lr", "0.05")
    for name, objective in written.items():
        assert crodobo(*steep, "--objective", objective, "--out", tmp_path / name)[0] == 0
        stored = json.loads((tmp_path / name / "result.json").read_text())["settings"]["options"]["objective"]
        assert stored == objective
    predicted = {name: (tmp_path / name / "predictions.csv").read_text() for name in written}
    assert predicted["named"] == predicted["spelled out"] != predicted["in turns"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--method", "mdd", "--set", "gamma"], "error: --set gamma has no value. Write --set NAME=VALUE."),
        (["--method", "mdd", "--set", "gamma="], "error: gamma cannot be empty: it must be a valid number"),
        (["--method", "mdd", "--set", "gamma=two"], "error: gamma cannot be two: "),
        (["--method", "mdd", "--set", "gamma=-1"], "error: gamma cannot be -1: "),
        (
            ["--method", "mdd", "--set", "quux=1"],
            "error: There is no option --quux. `crodobo config` shows",
        ),
        (["--method", "mdd", "--set", "gama=1"], "error: There is no option --gama. Did you mean --gamma?"),
        (["--method", "mdd", "--gama", "1"], "error: There is no option --gama. Did you mean --gamma?"),
        (
            ["--method", "ent", "--objective", "entropy"],
            "error: The method ent has no setting objective. Methods",
        ),
        (
            ["--objective", "entropy + entropy"],
            "error: objective cannot be entropy + entropy: the term entropy is given twice.",
        ),
        (["--objective", ""], "error: objective cannot be empty: there is no term ''"),
    ],
)
def test_a_wrong_setting_gives_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, crodobo: Crodobo
) -> None:
    status, _, errors = crodobo(*RUN, *arguments, "--out", tmp_path / "run")
    assert status == 2
    assert errors.startswith(sentence)
    assert errors.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_an_unknown_term_is_refused_with_a_list_of_all_terms(tmp_path: Path, crodobo: Crodobo) -> None:
    status, _, errors = crodobo(*RUN, "--objective", "entropy + nonsense", "--out", tmp_path / "run")
    assert status == 2
    assert "there is no term 'nonsense'; the terms are " in errors
    assert all(name in errors for name in (*TERMS, *PRESETS))
    assert errors.count("\n") == 1


@pytest.mark.parametrize("method", ["no-adaptation", "continual"])
def test_methods_without_a_source_accept_short_queries(method: str, tmp_path: Path, crodobo: Crodobo) -> None:
    status, _, _ = crodobo(*RUN, "--query-size", "8", "--method", method, "--out", tmp_path)
    assert status == 0
    assert (tmp_path / "result.json").exists()
