"""Every command and every example of the README runs."""

import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from crodobo.burn.scan import Find, Scan
from crodobo.data.presets import get_preset
from crodobo.ledger.ledger import Ledger

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The commands are run as written, with these added where they would take minutes.
TINY = ["--queries", "1", "--query-size", "8", "--warmup", "1", "--seeds", "0"]
SHORTER = {
    "compare": [*TINY, "--methods", "source-only,tent"],
    "study": TINY,
    "run": ["--queries", "1", "--query-size", "8", "--warmup", "1", "--set", "warmup_batch=8"],
    "adapt": ["--query-size", "8", "--warmup", "1"],
    "serve": ["--query-size", "8", "--warmup", "1", "--burn", "standard", "--set", "warmup_batch=8", "--quiet"],
}


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [line for block in fenced("sh") for line in block.splitlines() if line and not line.startswith("#")]


def test_the_readme_shows_commands_and_the_library() -> None:
    assert {line.split()[0] for line in commands()} >= {"make", "crodobo"}
    assert fenced("python")


def arguments(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    one_learner = ["--learners", "1"] if "resnet18" in words else []  # of 11 million weights
    return words[1:] + SHORTER.get(words[1], []) + one_learner


(SERVICE,) = [block for block in fenced("sh") if "crodobo serve" in block]  # a story: it is run as a whole
FIRST, *OTHERS = [line for line in commands() if line.startswith("crodobo") and line not in SERVICE]


def test_the_first_command_runs_as_written(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    """In a process of its own, like a person's."""
    subprocess.run(command(*arguments(FIRST)), cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("line", OTHERS)
def test_a_command_runs_as_written(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crodobo: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path, line)
    make_ledger(tmp_path, line)
    if "--self-test" in line:  # a minute; tests/audit/test_memory.py has real ones
        finds = {"strict": [], "off": [Find("bytes", "[heap]", 0, 8)]}
        monkeypatch.setattr("crodobo.audit.selftest.search", lambda case: Scan(scanned=1, finds=finds[case.burn]))
    status, out, errors = crodobo(*arguments(line))
    assert status == 0, out + errors
    if line.startswith("crodobo adapt"):
        assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1 + 20
        assert [path.name for path in (tmp_path / "inbox").iterdir()] == ["quarantine"]


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
def test_the_service_runs_as_written(tmp_path: Path, command: Callable[..., list[str]]) -> None:
    """By a shell, with a service that goes on in the background until the end."""
    make_images(tmp_path, SERVICE)
    (tmp_path / "picture.png").rename(tmp_path / "photo.jpg")
    (tmp_path / "crodobo").write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n')
    (tmp_path / "crodobo").chmod(0o755)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    script = SERVICE.replace("crodobo serve", f"crodobo serve {shlex.join(SHORTER['serve'])} --port {port}")
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    script = script.replace("crodobo send", f"crodobo send --url http://127.0.0.1:{port}")
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["sh", "-ec", f"trap 'kill $!; wait' EXIT; {script}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, errors = shell.communicate(timeout=120)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    assert shell.returncode == 0, out + errors
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 1 + 20
    assert '"receipt"' in out


def make_ledger(folder: Path, line: str) -> None:
    """What an earlier command has left, for the audit of it."""
    if words := [word for word in line.split() if word.endswith("ledger.jsonl")]:
        with Ledger(folder / words[0]) as ledger:
            ledger.begin({})


def make_images(folder: Path, line: str) -> None:
    """What the README's commands find: class folders, an inbox, a PACS whose images are all the same one."""
    picture = folder / "picture.png"
    Image.new("RGB", (24, 20), "teal").save(picture)
    os.utime(picture, (1e9, 1e9))
    counts = {f"{domain}/{name}": 20 for domain in ("public", "labelled") for name in ("cat", "dog")} | {"inbox": 20}
    if "PACS" in line:
        pacs = get_preset("pacs/cartoon-photo")
        for domain in (pacs.source, pacs.target):
            counts |= {f"PACS/{domain.paths[0]}/{name}": count for name, count in domain.counts.items()}
    for place, count in counts.items():
        (folder / place).mkdir(parents=True)
        for number in range(count):
            os.link(picture, folder / place / f"{number}.png")


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make")])
def test_a_make_target_is_there(line: str) -> None:
    words = shlex.split(line, comments=True)
    plan = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True, text=True)
    assert plan.stdout


def test_the_library_in_ten_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(fenced("python")):
        script = tmp_path / f"example{number}.py"
        block = block.replace("warmup=300", "warmup=1, warmup_batch=8").replace("[:320]", "[:16]")
        script.write_text(block.replace("size=64", "size=8"))
        runpy.run_path(str(script))


def test_files_and_pictures_that_it_names_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
