"""Every command of the README runs, and every file that it names exists. `test_docs.py` runs its Python."""

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from crodobo.burn.scan import Find, Scan
from crodobo.data.presets import get_preset
from crodobo.ledger.ledger import Ledger

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FILES = 20  # in each folder of images
# The commands run as written, with these options added where they would take minutes.
TINY = ["--queries", "1", "--query-size", "8", "--warmup", "1"]
SHORTER = {
    "compare": [*TINY, "--seeds", "0", "--methods", "source-only,tent"],
    "study": [*TINY, "--seeds", "0"],
    "run": [*TINY, "--set", "warmup_batch=8"],
    "adapt": ["--query-size", "8", "--warmup", "1"],
    "serve": ["--query-size", "8", "--warmup", "1", "--burn", "standard", "--set", "warmup_batch=8", "--quiet"],
}


def blocks() -> list[str]:
    """The shell blocks; a line that ends with a backslash is joined with the next."""
    found = re.findall(r"^```(?:sh|bash|shell|console)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", " ", block) for block in found]


def commands(block: str) -> list[str]:
    return [line for line in block.splitlines() if line.strip() and not line.startswith("#")]


def needs_a_shell(block: str) -> bool:
    """Whether commands run in the background, or pass output on: then the block runs as a whole."""
    return any(word in ("&", "|", ">", ">>") for line in commands(block) for word in line.split())


SCRIPTS = [block for block in blocks() if needs_a_shell(block) and "crodobo " in block]
LINES = [line for block in blocks() if not needs_a_shell(block) for line in commands(block)]
COMMANDS = [line for line in LINES if line.startswith("crodobo ")]
TARGETS = [line for line in LINES if line.startswith("make ")]


def test_the_readme_shows_commands() -> None:
    assert COMMANDS
    assert TARGETS


def arguments(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    one_learner = ["--learners", "1"] if "resnet18" in words else []  # of 11 million weights
    return words[1:] + SHORTER.get(words[1], []) + one_learner


@pytest.mark.parametrize("line", COMMANDS[:1])
def test_the_first_command_runs_in_its_own_process(
    line: str, tmp_path: Path, command: Callable[..., list[str]]
) -> None:
    prepare(tmp_path, line)
    subprocess.run(command(*arguments(line)), cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("line", COMMANDS[1:])
def test_a_command_runs_as_written(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crodobo: Callable[..., tuple[int, str, str]]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path, line)
    if "--self-test" in line:  # a minute; tests/audit/test_memory.py has real ones
        finds = {"strict": [], "off": [Find("bytes", "[heap]", 0, 8)]}
        monkeypatch.setattr("crodobo.audit.selftest.search", lambda case: Scan(scanned=1, finds=finds[case.burn]))
    status, out, errors = crodobo(*arguments(line))
    assert status == 0, out + errors
    if line.startswith("crodobo adapt"):
        assert len((tmp_path / value(line, "--predictions")).read_text().splitlines()) == 1 + FILES
        if "--keep-files" not in line:
            assert [path.name for path in (tmp_path / value(line, "--inbox")).iterdir()] == ["quarantine"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_as_written(
    script: str, tmp_path: Path, command: Callable[..., list[str]], free_port: Callable[[], int]
) -> None:
    """By a shell; a service in the background is stopped at the end."""
    if "curl" in script and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    prepare(tmp_path, script)
    port = free_port()
    added = {name: shlex.join(options) for name, options in SHORTER.items()}
    added |= {"serve": f"{added['serve']} --port {port}", "send": f"--url http://127.0.0.1:{port}"}
    start = f'exec {shlex.join(command())} "$@"'
    cases = "".join(f"{name}) {start} {options} ;;\n" for name, options in added.items())
    (tmp_path / "crodobo").write_text(f'#!/bin/sh\ncase "$1" in\n{cases}esac\n{start}\n')
    (tmp_path / "crodobo").chmod(0o755)
    at_the_end = "trap 'kill $! 2>/dev/null || true; wait' EXIT"
    with subprocess.Popen(
        ["sh", "-ec", f"{at_the_end}; {script.replace('127.0.0.1:8000', f'127.0.0.1:{port}')}"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, errors = shell.communicate(timeout=300)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    assert shell.returncode == 0, out + errors
    for line in commands(script):
        if line.startswith("crodobo send"):
            assert len((tmp_path / value(line, "--predictions")).read_text().splitlines()) == 1 + FILES
    if "/v1/predict" in script:
        assert '"receipt"' in out


def value(line: str, option: str) -> str:
    words = shlex.split(line, comments=True)
    return words[words.index(option) + 1]


def prepare(folder: Path, text: str) -> None:
    """Make the files and folders that commands name."""
    picture = folder / "picture.png"
    Image.new("RGB", (24, 20), "teal").save(picture)
    os.utime(picture, (1e9, 1e9))
    counts: dict[str, int] = {}
    for line in commands(text):
        words = [*shlex.split(line, comments=True), ""]
        for word, following in pairwise(words):
            if word in ("--source", "--target"):
                counts |= {f"{following}/{name}": FILES for name in ("cat", "dog")}
            elif word == "--inbox" or words[:2] == ["crodobo", word] == ["crodobo", "send"]:
                counts[following] = FILES
            elif word == "--data":
                counts |= images_of(value(line, "--preset"), following)
            elif word == "check":
                counts |= images_of(following, words[words.index(following) + 1])
            elif word.endswith("ledger.jsonl"):  # an earlier command has left it
                with Ledger(folder / word) as ledger:
                    ledger.begin({})
            for name in re.findall(r"@(\S+\.(?:jpg|png))", word):  # what curl uploads
                shutil.copy(picture, folder / name)
    for place, count in counts.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            os.link(picture, folder / place / f"{number}.png")


def images_of(preset: str, root: str) -> dict[str, int]:
    """How many images the folders of a data set hold."""
    domains = (get_preset(preset).source, get_preset(preset).target)
    return {f"{root}/{each.paths[0]}/{name}": count for each in domains for name, count in each.counts.items()}


@pytest.mark.parametrize("line", TARGETS)
def test_a_make_target_exists(line: str) -> None:
    words = shlex.split(line, comments=True)
    plan = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True, text=True)
    assert plan.stdout


def test_files_that_it_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
