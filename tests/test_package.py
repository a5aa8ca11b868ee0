"""The package builds, and importing it is cheap. `make check` checks the direction of its imports."""

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
    kinds = (".css", ".html", ".js", ".py", ".svg", ".toml", ".typed")
    wanted = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*") if path.suffix in kinds}
    assert {"crodobo/__init__.py", "crodobo/py.typed"} <= wanted
    assert wanted <= names


def test_the_command_line_starts_without_torch() -> None:
    code = "import crodobo.cli.main, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_public_can_be_had() -> None:
    code = "import crodobo; [getattr(crodobo, name) for name in crodobo.__all__]"
    subprocess.run([sys.executable, "-c", code], check=True)
