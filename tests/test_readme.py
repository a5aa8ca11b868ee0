"""Every command and every example of the README runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
# The commands are run as written, with these added where they would take minutes.
TINY = ["--queries", "1", "--query-size", "16", "--warmup", "1", "--seeds", "0"]
SHORTER = {
    "compare": [*TINY, "--methods", "source-only,tent"],
    "study": TINY,
    "run": ["--queries", "2", "--query-size", "16", "--warmup", "2"],
    "bench": ["--case", "glyphs", "--rounds", "1", "--queries", "10"],
}


def fenced(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [line for block in fenced("sh") for line in block.splitlines() if line and not line.startswith("#")]


def test_the_readme_shows_commands_and_the_library() -> None:
    assert {line.split()[0] for line in commands()} >= {"make", "crodobo"}
    assert fenced("python")


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("crodobo")])
def test_a_command_runs_as_written(line: str, tmp_path: Path) -> None:
    words = shlex.split(line, comments=True)
    arguments = words[1:] + SHORTER.get(words[1], [])
    subprocess.run([sys.executable, "-m", "crodobo", *arguments], cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("line", [line for line in commands() if line.startswith("make")])
def test_a_make_target_is_there(line: str) -> None:
    words = shlex.split(line, comments=True)
    plan = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, check=True, capture_output=True, text=True)
    assert plan.stdout


def test_the_library_in_ten_lines(tmp_path: Path) -> None:
    for number, block in enumerate(fenced("python")):
        script = tmp_path / f"example{number}.py"
        script.write_text(block.replace("warmup=300", "warmup=2").replace("queries=None", "queries=2"))
        subprocess.run([sys.executable, script], cwd=tmp_path, check=True, capture_output=True, env=os.environ)


def test_files_and_pictures_that_it_names_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
