"""matplotlib and jinja2 are in an extra: imports work without them, and a run says at once that they are missing."""

import subprocess
import sys
from pathlib import Path

import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys
import crodobo.evaluate
for module in pkgutil.walk_packages(crodobo.evaluate.__path__, "crodobo.evaluate."):
    importlib.import_module(module.name)
print([name for name in ("jinja2", "matplotlib") if name in sys.modules])
"""
BLOCKED = """
import sys
sys.modules |= dict.fromkeys({blocked!r})  # importing these fails
sys.argv = ["crodobo", *{arguments!r}]
from crodobo.cli.main import main
main()
"""


def run_python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_importing_evaluate_imports_neither_matplotlib_nor_jinja2() -> None:
    done = run_python(IMPORT_ALL)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize("blocked", [["matplotlib"], ["jinja2", "matplotlib"]], ids=" and ".join)
def test_missing_packages_are_reported_before_a_run_starts(command: str, blocked: list[str], tmp_path: Path) -> None:
    out = tmp_path / "new"
    done = run_python(BLOCKED.format(blocked=blocked, arguments=[command, "--out", str(out)]))
    assert (done.returncode, done.stdout) == (2, "")
    problem, remedy = f"Figures and reports need {' and '.join(blocked)}.", 'pip install "crodobo[benchmarks]"'
    assert done.stderr.startswith(f"error: {problem} Install the missing packages with {remedy}.")
    assert done.stderr.count("\n") == 1
    assert not out.exists()
