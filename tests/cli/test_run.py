"""`crodobo run` as a person meets it: files, sentences, signals and kills, in real processes where it matters."""

import csv
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch

from crodobo import load_model
from crodobo.audit.ledger import audit_ledger
from crodobo.core.prediction import Adaptation
from crodobo.guard.guard import Guard
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import digest_of
from crodobo.nn.learner import Learner
from crodobo.session.checkpoint import NAME
from crodobo.storage.lock import locked_folder

Crodobo = Callable[..., tuple[int, str, str]]
Command = Callable[..., list[str]]

QUERIES, SIZE = 16, 8
SHORT = ["run", "--queries", str(QUERIES), "--query-size", str(SIZE), "--warmup", "2", "--checkpoint-every", "2"]
SHORTEST = ["run", "--queries", "1", "--query-size", "8", "--warmup", "0"]


def wait_for_checkpoint(folder: Path, alive: Callable[[], bool]) -> None:
    """Until a checkpoint is there that was not there before."""
    path = folder / NAME
    before = path.stat().st_mtime_ns if path.exists() else 0
    while not path.exists() or path.stat().st_mtime_ns == before:
        assert alive(), "it ended before its checkpoint"
        time.sleep(0.005)


def predictions(folder: Path) -> list[list[str]]:
    with (folder / "predictions.csv").open() as file:
        return list(csv.reader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, crodobo: Crodobo) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert crodobo(*SHORT, "--out", folder, "--quiet") == (0, f"{folder}\n", "")
    return folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, crodobo: Crodobo) -> Path:
    """The same with the published algorithm, which learns every query."""
    folder = tmp_path_factory.mktemp("published") / "run"
    assert crodobo(*SHORT, "--plain", "--out", folder, "--quiet") == (0, f"{folder}\n", "")
    return folder


# What a process does that is started: what it prints goes nowhere, its errors into a file.
COMMAND = """
import os
from crodobo.cli.main import main
for stream, file in ((1, os.devnull), (2, {errors!r})):
    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
main()
"""


@pytest.fixture(scope="module")
def start() -> Callable[..., BaseProcess]:
    """Start a command to be stopped or killed: in a process of its own, of one that has the libraries loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["crodobo.evaluate.comparison.tasks"])

    def call(*arguments: str | Path, errors: Path = Path(os.devnull)) -> BaseProcess:
        process = context.Process(target=exec, args=(COMMAND.format(errors=str(errors)), {}))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["crodobo", *map(str, arguments)])  # handed down
            process.start()
        return process

    return call


def test_a_run_writes_all_its_result_files(finished: Path) -> None:
    assert {path.name for path in finished.iterdir()} == {
        "result.json",
        "curve.csv",
        "predictions.csv",
        "curve.png",
        "report.html",
        "model.safetensors",
        "ledger.jsonl",
        ".lock",
    }
    result = json.loads((finished / "result.json").read_text())
    wanted = (
        "method benchmark seed learners queries samples online_accuracy one_pass_accuracy per_class_accuracy "
        "seconds_per_query peak_rss_mb protocol settings versions"
    )
    assert set(wanted.split()) <= result.keys()
    assert (result["method"], result["learners"], result["queries"], result["samples"]) == (
        "crodobo",
        2,
        QUERIES,
        QUERIES * SIZE,
    )
    # Learners know nothing after two steps of warm-up, so nothing is learned from the queries.
    assert (result["predicted_only"], result["restored_weights"]) == ({"learners disagree": QUERIES}, [])
    rows = list(csv.DictReader((finished / "curve.csv").read_text().splitlines()))
    assert [int(row["query"]) for row in rows] == list(range(1, QUERIES + 1))
    assert float(rows[-1]["online_accuracy"]) == result["online_accuracy"]
    right = [row[2] == row[4] for row in predictions(finished)[1:]]
    assert sum(right) / len(right) == result["online_accuracy"]
    assert (finished / "curve.png").read_bytes().startswith(b"\x89PNG")


def skip_update(learner: Learner, *_: object) -> bool:
    """As an update does whose loss is not finite."""
    learner.forget()
    return False


def test_skipped_predicted_only_and_restored_are_counted_and_shown(
    tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter(
        [Adaptation(), Adaptation(predicted_only="few classes"), Adaptation(restored="the learners had collapsed")]
    )
    monkeypatch.setattr(Guard, "before", lambda *_: next(found))
    monkeypatch.setattr(Learner, "update", skip_update)
    arguments = [*SHORTEST, "--plain", "--queries", "3", "--out", tmp_path / "run"]
    status, text, _ = crodobo(*arguments)
    assert status == 0
    assert "Query 3: the learners had collapsed" in text
    for line in (r"skipped updates\s+4", r"predicted only\s+1 \(few classes\)", r"restored weights\s+1"):
        assert re.search(line, text)
    assert "skipped 4 · predicted only 1 · restored 1" in text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["skipped_updates"], result["predicted_only"]) == (4, {"few classes": 1})
    assert result["restored_weights"] == ["query 3: the learners had collapsed"]
    rows = list(csv.DictReader((tmp_path / "run" / "curve.csv").read_text().splitlines()))
    assert [(row["skipped"], row["predicted_only"], row["restored"]) for row in rows] == [
        ("2", "", "0"),
        ("0", "few classes", "0"),
        ("2", "", "1"),
    ]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "query 3: the learners had collapsed" in page
    assert "1 query was predicted only, and not learned: few classes." in page


def test_without_the_guard_every_query_is_learned(
    tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Guard, "before", lambda *_: Adaptation(predicted_only="few classes"))
    assert crodobo(*SHORTEST, "--no-guard", "--out", tmp_path / "run", "--quiet")[0] == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["predicted_only"] == {}


def test_the_published_algorithm_learns_every_small_query(published: Path) -> None:
    result = json.loads((published / "result.json").read_text())
    assert (result["predicted_only"], result["restored_weights"]) == ({}, []), "small mixed queries are nothing strange"


@pytest.mark.parametrize(("run", "tolerance"), [("published", 0.0), ("finished", 0.1)])
def test_the_model_predicts_what_the_run_did(run: str, tolerance: float, request: pytest.FixtureRequest) -> None:
    from crodobo import load_benchmark

    folder = request.getfixturevalue(run)
    model = load_model(folder / "model.safetensors")
    benchmark = load_benchmark("glyphs")
    streamed = benchmark.order(0)[: QUERIES * SIZE]
    batches = zip(benchmark.images[streamed].split(SIZE), benchmark.labels[streamed].split(SIZE), strict=True)
    right = sum(int((model.predict(images).labels == labels).sum()) for images, labels in batches)
    one_pass = json.loads((folder / "result.json").read_text())["one_pass_accuracy"]
    # The default crodobo looks at each query before it predicts it. A model does not, so it may differ a little.
    assert right / (QUERIES * SIZE) == pytest.approx(one_pass, abs=tolerance)
    assert model.classes == tuple("0123456789")


def test_a_run_killed_several_times_ends_with_the_same_predictions(
    finished: Path, tmp_path: Path, start: Callable[..., BaseProcess], crodobo: Crodobo
) -> None:
    chance = random.Random(7)
    out = tmp_path / "killed"
    for _ in range(3):
        process = start(*SHORT, "--out", out, "--quiet")
        for _ in range(chance.randint(1, 3)):
            wait_for_checkpoint(out, process.is_alive)
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert not (out / "result.json").exists(), "the kills must come before the end"
    assert crodobo(*SHORT, "--out", out, "--quiet")[0] == 0
    assert predictions(out) == predictions(finished)
    assert not (out / NAME).exists()
    report = audit_ledger(out / LEDGER)
    assert report.sound, report.found
    assert sum("the process before was killed" in text for text in report.noted) == 3
    assert set(receipts(out)) == set(range(1, QUERIES + 1)), "a query that was met twice has two"


def receipts(folder: Path) -> list[int]:
    """The queries that have a line in the ledger."""
    entries = [json.loads(line) for line in (folder / LEDGER).read_text().splitlines()]
    return [entry["query"] for entry in entries if entry["kind"] == "query"]


def test_each_query_has_a_receipt(finished: Path) -> None:
    assert receipts(finished) == list(range(1, QUERIES + 1))
    report = audit_ledger(finished / LEDGER)
    assert (report.sound, len(report.noted)) == (True, 2), "only the id and the last hash"
    entries = [json.loads(line) for line in (finished / LEDGER).read_text().splitlines()]
    assert {entry["samples"] for entry in entries if entry["kind"] == "query"} == {SIZE}
    assert min(entry["wiped"] for entry in entries if entry["kind"] == "query") >= SIZE * 28 * 28
    assert entries[0]["settings"] == digest_of(json.loads((finished / "result.json").read_text())["settings"])


def test_a_receipt_is_written_before_the_checkpoint_of_its_query(
    tmp_path: Path, crodobo: Crodobo, monkeypatch: pytest.MonkeyPatch
) -> None:
    import crodobo.session.checkpoint_writer as module

    save, seen = module.save_checkpoint, []

    def look(folder: Path, tensors: object, identity: object, progress: dict[str, Any]) -> None:
        seen.append((len(progress["record"]["rows"]), len(receipts(folder))))
        save(folder, tensors, identity, progress)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "save_checkpoint", look)
    assert crodobo(*SHORTEST, "--queries", "2", "--checkpoint-every", "1", "--out", tmp_path, "-q")[0] == 0
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_a_new_run_in_the_same_folder_continues_the_ledger(tmp_path: Path, crodobo: Crodobo) -> None:
    for tau in ("0.9", "0.8"):
        assert crodobo(*SHORTEST, "--out", tmp_path, "-q", "--fresh", "--tau", tau)[0] == 0
    assert receipts(tmp_path) == [1, 1]
    report = audit_ledger(tmp_path / LEDGER)
    assert report.sound
    assert any("the stream restarts" in text for text in report.noted)


def test_sign_key_signs_the_ledger(tmp_path: Path, crodobo: Crodobo) -> None:
    key = tmp_path / "key"
    assert crodobo("audit", "keygen", key)[0] == 0
    assert crodobo(*SHORTEST, "--out", tmp_path / "run", "-q", "--sign-key", key)[0] == 0
    assert crodobo("audit", "ledger", tmp_path / "run" / LEDGER, "--public-key", f"{key}.pub")[0] == 0
    again = (*SHORTEST, "--out", tmp_path / "run", "-q", "--fresh")
    status, _, errors = crodobo(*again, "--sign-key", tmp_path / "nowhere")
    assert (status, "is not readable (No such file or directory). Check the path. (see --sign-key)" in errors) == (
        2,
        True,
    )
    status, _, errors = crodobo(*again)
    assert (status, "is signed. Use its signing key" in errors, "--sign-key" in errors) == (2, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_query_and_the_same_command_goes_on(
    number: signal.Signals, finished: Path, tmp_path: Path, start: Callable[..., BaseProcess], crodobo: Crodobo
) -> None:
    out, errors = tmp_path / "stopped", tmp_path / "errors"
    process = start(*SHORT, "--checkpoint-every", "100", "--out", out, errors=errors)
    wait_for_checkpoint(out, process.is_alive)
    os.kill(process.pid or 0, number)
    process.join(60)
    assert process.exitcode == 130
    assert "same command" in errors.read_text()
    assert "Traceback" not in errors.read_text()
    assert crodobo(*SHORT, "--out", out, "--resume", "--quiet")[0] == 0, "the old spelling has no effect"
    assert predictions(out) == predictions(finished)


def test_learners_in_sequence_give_the_same_files(finished: Path, tmp_path: Path, crodobo: Crodobo) -> None:
    crodobo(*SHORT, "--sequence", "--out", tmp_path, "--quiet")
    assert predictions(tmp_path) == predictions(finished)


def test_a_finished_run_is_not_run_again(finished: Path, crodobo: Crodobo) -> None:
    before = (finished / "result.json").stat().st_mtime_ns
    status, out, _ = crodobo(*SHORT, "--out", finished)
    assert status == 0
    assert f"The run in {finished} is finished already. Run it again with --fresh." in out
    assert (finished / "result.json").stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., BaseProcess]) -> Path:
    """What a run that was killed right after its warm-up leaves; not to be changed."""
    folder = tmp_path_factory.mktemp("killed")
    process = start(*SHORT, "--out", folder, "--quiet")
    wait_for_checkpoint(folder, process.is_alive)
    process.kill()
    process.join()
    return folder


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path) -> Path:
    """A copy of that."""
    return shutil.copytree(killed, tmp_path / "unfinished")


def test_a_checkpoint_of_other_settings_is_refused(unfinished: Path, crodobo: Crodobo) -> None:
    status, _, errors = crodobo(*SHORT, "--out", unfinished, "--tau", "0.8")
    assert status == 2
    assert "tau is 0.95 there and 0.8 here" in errors
    assert (unfinished / NAME).exists()


def test_a_truncated_checkpoint_is_refused(unfinished: Path, crodobo: Crodobo) -> None:
    os.truncate(unfinished / NAME, 1000)
    status, _, errors = crodobo(*SHORT, "--out", unfinished)
    assert status == 2
    assert "damaged" in errors
    assert "Traceback" not in errors


def test_fresh_starts_over(unfinished: Path, finished: Path, crodobo: Crodobo) -> None:
    assert crodobo(*SHORT, "--out", unfinished, "--fresh", "--tau", "0.8", "-q")[0] == 0
    result = json.loads((unfinished / "result.json").read_text())
    assert (result["settings"]["options"]["tau"], result["queries"]) == (0.8, QUERIES)
    assert not (unfinished / NAME).exists()


def test_a_mistyped_backbone_leaves_no_folder_behind(crodobo: Crodobo, tmp_path: Path) -> None:
    assert crodobo("run", "--backbone", "resnt18", "--out", tmp_path / "out")[0] == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--tau", "3"], "tau cannot be 3:"),
        (["--learners", "0"], "learners cannot be 0"),
        (["--method", "magic"], "Choose one of source-only, dan"),
        (["--method", "crodobbo"], "There is no method 'crodobbo'. Did you mean crodobo? (see --method)"),
        (["--method", "source-only", "--tau", "0.9"], "no setting tau"),
        (["--method", "single", "--learners", "2"], "learners cannot be 2"),
        (["--benchmark", "visda"], "There is no benchmark 'visda'. Choose glyphs or a preset, or give"),
        (["--benchmark", "glyps"], "There is no benchmark 'glyps'. Did you mean glyphs? (see --benchmark)"),
        (["--backbone", "resnet19"], "There is no backbone 'resnet19'. Did you mean resnet18 or resnet"),
        (["--backbone", "torchvision/resnet19"], "Did you mean torchvision/resnet18 or torchvision/resnet"),
        (["--weights", "/nowhere.pth"], "no weights file /nowhere.pth"),
        (["--pretrained"], "no pretrained weights"),
        (["--query-size", "0"], "query_size cannot be 0"),
        (["--lr", "nan"], "lr cannot be nan"),
        (["--norm", "layer"], "norm cannot be layer: it must be 'mixed', 'running' or 'query'. (see --norm)"),
        (
            ["--stream", "sorted"],
            "error: There is no stream order 'sorted'. Choose random, by-class, drift or ",
        ),
        (["--stream", "dirichlet(0)"], "The α of 'dirichlet(0)' cannot be '0'. Choose a number above 0, for "),
        (["--stream-seed", "-1"], "stream_seed cannot be -1"),
        (["--out", "/dev/null/runs"], "is not writable"),
        (["--learnes", "4"], "There is no option --learnes. Did you mean --learners?"),
        (["--colours"], "There is no option --colours. Did you mean --colour?"),
        (["--frehs"], "There is no option --frehs. Did you mean --fresh?"),
        (["--watch"], "This command has no option --watch."),
        (["glyphs"], "There is no argument glyphs here."),
    ],
)
def test_a_wrong_argument_gives_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path, crodobo: Crodobo
) -> None:
    out = [] if "--out" in arguments else ["--out", tmp_path]
    status, _, errors = crodobo(*SHORTEST, *out, *arguments)
    assert status == 2
    assert sentence in " ".join(errors.split())
    assert "Traceback" not in errors


def test_weights_that_do_not_fit_are_named(tmp_path: Path, crodobo: Crodobo) -> None:
    torch.save({"stem.0.weight": torch.zeros(3, 3)}, tmp_path / "other.pth")
    status, _, errors = crodobo("run", "--weights", tmp_path / "other.pth", "--out", tmp_path)
    assert status == 2
    assert "does not fit small" in errors


def test_an_error_leaves_earlier_results_unchanged(finished: Path, crodobo: Crodobo) -> None:
    before = {path.name: path.read_bytes() for path in finished.iterdir()}
    assert crodobo(*SHORT, "--out", finished, "--weights", "nowhere.pth")[0] == 2
    assert {path.name: path.read_bytes() for path in finished.iterdir()} == before


def test_quiet_prints_only_the_folder(tmp_path: Path, crodobo: Crodobo) -> None:
    status, out, errors = crodobo(*SHORTEST, "--out", tmp_path, "-q")
    assert (status, out, errors) == (0, f"{tmp_path}\n", "")


def test_a_new_run_replaces_the_old_results_only(tmp_path: Path, crodobo: Crodobo) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for tau in ("0.9", "0.8"):
        crodobo(*SHORTEST, "--out", tmp_path, "-q", "--fresh", "--tau", tau)
    assert json.loads((tmp_path / "result.json").read_text())["settings"]["options"]["tau"] == 0.8
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_finished_run_of_other_settings_is_not_resumed(finished: Path, crodobo: Crodobo) -> None:
    before = (finished / "result.json").read_bytes()
    status, _, errors = crodobo(*SHORT, "--out", finished, "--tau", "0.5")
    assert status == 2
    assert "tau is 0.95 there and 0.5 here" in errors
    assert (finished / "result.json").read_bytes() == before


def test_files_that_no_run_has_written_are_not_overwritten(tmp_path: Path, crodobo: Crodobo) -> None:
    (tmp_path / "model.safetensors").write_text("precious")
    assert crodobo(*SHORT, "--out", tmp_path)[0] == 2
    assert (tmp_path / "model.safetensors").read_text() == "precious"


def test_a_folder_has_one_run_at_a_time(tmp_path: Path, crodobo: Crodobo) -> None:
    with locked_folder(tmp_path):
        status, _, errors = crodobo(*SHORT, "--out", tmp_path)
    assert status == 2
    assert f"Another process is writing to {tmp_path}." in errors


def test_a_closed_pipe_does_not_end_the_run(tmp_path: Path, command: Command) -> None:
    process = subprocess.Popen(command(*SHORTEST, "--out", tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")
    assert (tmp_path / "result.json").exists()


def test_the_stream_has_the_given_order(tmp_path: Path, crodobo: Crodobo) -> None:
    from crodobo import load_benchmark

    few = ["run", "--queries", "3", "--query-size", "16", "--warmup", "0", "--method", "source-only", "-q"]
    bursts = [*few, "--stream", "dirichlet(0.5)", "--stream-seed", "7", "--out", tmp_path]
    assert crodobo(*bursts)[0] == 0
    order = load_benchmark("glyphs").order(7, "dirichlet(0.5)")[:48]
    assert [int(row[1]) for row in predictions(tmp_path)[1:]] == order.tolist()
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["protocol"]["stream"] == "dirichlet(0.5) order of seed 7, queries of 16"
    assert (result["seed"], result["settings"]["stream"]) == (0, "dirichlet(0.5)")
    status, _, errors = crodobo(*bursts, "--stream", "drift")
    assert status == 2
    assert "stream is dirichlet(0.5) there and drift here" in errors


@pytest.mark.parametrize("method", ["single", "source-only"])
def test_other_methods_and_a_last_short_query(method: str, tmp_path: Path, crodobo: Crodobo) -> None:
    status, _, _ = crodobo(
        "run", "--method", method, "--query-size", "2499", "--warmup", "0", "--out", tmp_path, "--image-size", "8", "-q"
    )
    assert status == 0
    rows = list(csv.DictReader((tmp_path / "curve.csv").read_text().splitlines()))
    assert [int(row["samples"]) for row in rows] == [2499, 2499, 2]


def test_the_module_and_the_version(command: Command) -> None:
    from crodobo import __version__

    shown = subprocess.run(command("--version"), check=True, capture_output=True, text=True)
    assert shown.stdout == f"crodobo {__version__}\n"
