"""The package builds, installs, and its modules import in one direction."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "crodobo"


def test_the_wheel_builds_and_holds_what_the_package_needs(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path)]
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("crodobo-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.py")}
    templates = {f"crodobo/report/templates/{name}.html" for name in ("base", "page", "comparison")}
    assert wanted | templates | {"crodobo/py.typed", "crodobo/paper.toml"} <= names


def test_the_command_line_starts_without_torch() -> None:
    code = "import crodobo.cli.main, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_public_can_be_had() -> None:
    code = "import crodobo; [getattr(crodobo, name) for name in crodobo.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_core_does_not_import_what_is_built_on_it() -> None:
    """Losses, learners and methods know nothing of data sets, reports or the command line."""
    core = ["query", "source", "pixels", "augment", "normalisation", "learner", "backbones", "weights", "prediction"]
    files = [PACKAGE / f"{name}.py" for name in core]
    files += [path for folder in ("losses", "engine", "methods") for path in (PACKAGE / folder).glob("*.py")]
    for path in files:
        imported = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module
        }
        above = {
            f"crodobo.{name}" for name in ("data", "report", "cli", "run", "outcome", "protocol", "metrics", "model")
        }
        assert not {module for module in imported if any(module.startswith(name) for name in above)}, path
