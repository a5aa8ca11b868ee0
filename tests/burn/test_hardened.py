"""A process relaunched for strict burning: its protections, its freed memory, and its proof."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from crodobo.burn import allocator
from crodobo.burn import relaunch as launch
from crodobo.burn.hardening import harden
from crodobo.errors import NotHardened

SCRIPT = Path(__file__).with_name("hardened.py")


@pytest.fixture(scope="module")
def hardened() -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(SCRIPT), "an argument", "ä"], capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_the_relaunched_process_keeps_its_number_and_arguments(hardened: dict[str, Any]) -> None:
    assert hardened["pid_is_the_same"]
    assert hardened["arguments"] == ["an argument", "ä"]


def test_freed_memory_is_overwritten(hardened: dict[str, Any]) -> None:
    assert hardened["allocator"] == "zero-on-free"
    assert hardened["freed"] == [0, 0, 0, 0]


def test_realloc_keeps_the_content_and_leaves_nothing_behind(hardened: dict[str, Any]) -> None:
    assert hardened["moved"] == [[0, True]] * 5
    assert hardened["realloc_to_zero_frees"]
    assert hardened["overflow"]


def test_core_dumps_are_off_and_the_process_is_closed_to_others(hardened: dict[str, Any]) -> None:
    assert hardened["core"] == [0, 0]
    assert hardened["dumpable"] == 0
    assert not hardened["others_may_open_it"]


def test_the_proof_finds_nothing_and_changes_no_learner(hardened: dict[str, Any]) -> None:
    assert hardened["proof"]["found"] == 0
    assert hardened["proof"]["scanned"] > 10**8
    assert hardened["proof"]["unreadable"] == 0
    assert hardened["changed"] == []
    assert re.search(r"^Burn proof: nothing of a test query is left in \d+ MB of memory", hardened["said"][-1])


def test_a_method_that_keeps_a_copy_is_refused_with_its_location(hardened: dict[str, Any]) -> None:
    """8 images of 16×16 as floats. Each row of 16 contains a needle two or three times."""
    found = re.match(
        r"A test query was burned, but traces are still in memory: (\d+) bytes as floats in \S.*, from 0x",
        hardened["hoarder"],
    )
    assert found
    assert 8 * 256 * 4 / 2 <= int(found[1]) <= 8 * 256 * 4 * 2
    assert "No private image was read" in hardened["hoarder"]
    assert "\n" not in hardened["hoarder"]


def test_a_process_that_was_not_relaunched_is_refused_with_everything_missing() -> None:
    harden.cache_clear()
    with pytest.raises(NotHardened) as refusal:
        harden()
    for part in ("freed memory is not overwritten", "PYTHONMALLOC=malloc", "MKL_DISABLE_FAST_MM=1", "relaunch()"):
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("MKL_DISABLE_FAST_MM", "0", "MKL_DISABLE_FAST_MM"),
        ("PYTHONMALLOC", "pymalloc", "PYTHONMALLOC"),
        ("LD_BIND_NOW", "", "LD_BIND_NOW"),
        ("LD_PRELOAD", "", "freed memory is not overwritten"),
        ("PILLOW_BLOCKS_MAX", "8", "PILLOW_BLOCKS_MAX is set"),
    ],
)
def test_one_missing_protection_is_enough_to_refuse(name: str, value: str, part: str) -> None:
    code = "from crodobo.burn.hardening import harden; harden()"
    variables = launch.environment() | {name: value}
    failed = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert re.search(rf"NotHardened: Strict burning cannot start: {part}[^;]*\. ", failed.stderr)


def test_a_relaunched_process_closes_itself_at_once_and_does_not_relaunch_again() -> None:
    code = (
        "import ctypes, os\n"
        "from crodobo.burn.relaunch import MARK, relaunch\n"
        "os.execve = None\n"
        "os.environ[MARK] = str(os.getpid())\n"
        "relaunch()\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_child_of_a_relaunched_process_does_not_count_as_relaunched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.MARK, str(os.getppid()))
    assert not launch.launched()


def test_the_users_own_preload_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/their/library.so")
    assert launch.environment()["LD_PRELOAD"] == f"{allocator.LIBRARY}:/their/library.so"


def test_variables_with_which_pillow_keeps_memory_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in launch.UNSET:
        monkeypatch.setenv(name, "64")
    assert not set(launch.UNSET) & launch.environment().keys()


def test_without_our_library_other_allocators_are_used_and_state_their_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "LIBRARY", Path("/nowhere/zero_on_free.so"))
    found = allocator.best()
    assert found
    assert "perturb" in found[1]["GLIBC_TUNABLES"]
    assert found[0].uncovered
    monkeypatch.setattr("os.confstr", lambda name: None)  # not glibc
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "libjemalloc.so.2")
    found = allocator.best()
    assert found
    assert (found[0].name, found[1]["MALLOC_CONF"]) == ("jemalloc junk:free", "junk:free")
    assert found[0].uncovered
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert allocator.best() is None


def test_without_any_allocator_the_error_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "ALLOCATORS", ())
    with pytest.raises(NotHardened, match="C compiler") as refusal:
        launch.environment()
    assert "\n" not in str(refusal.value)


def test_a_process_with_a_debugger_is_refused() -> None:
    code = (
        "import ctypes, os, signal\n"
        "from crodobo.burn.closing import close_process\n"
        "libc = ctypes.CDLL(None)\n"
        "if not (child := os.fork()):\n"
        "    libc.ptrace(0, 0, None, None)\n"  # let the parent debug it
        "    close_process()\n"
        "os.waitpid(child, 0)\n"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "NotHardened: Strict burning cannot start: a debugger is attached" in failed.stderr


def test_the_command_line_closes_a_relaunched_process_before_it_loads_commands() -> None:
    code = (
        "import ctypes, os, sys\n"
        "os.environ['CRODOBO_LAUNCHED'] = str(os.getpid())\n"
        "import crodobo.cli\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0\n"
        "assert not {'typer', 'pydantic', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
