"""The package builds, and its names can be imported."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "crodobo"


def test_the_wheel_contains_all_files_of_the_package(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path)]
    subprocess.run([*pip, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("crodobo-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*.py")}
    templates = {f"crodobo/evaluate/report/templates/{name}.html" for name in ("base", "page", "comparison")}
    assert wanted | templates | {"crodobo/py.typed", "crodobo/evaluate/paper.toml"} <= names


def test_the_command_line_starts_without_torch() -> None:
    code = "import crodobo.cli.main, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_public_names_can_be_imported() -> None:
    code = "import crodobo; [getattr(crodobo, name) for name in crodobo.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)
