"""A process that was started for strict burning: what is in force, what freed memory holds, and its proof."""

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


def test_it_is_the_same_process_with_the_same_arguments(hardened: dict[str, Any]) -> None:
    assert hardened["pid_is_the_same"]
    assert hardened["arguments"] == ["an argument", "ä"]


def test_freed_memory_holds_nothing(hardened: dict[str, Any]) -> None:
    assert hardened["allocator"] == "zero-on-free"
    assert hardened["freed"] == [0, 0, 0, 0]


def test_memory_that_grows_shrinks_or_moves_keeps_its_content_and_leaves_nothing(hardened: dict[str, Any]) -> None:
    assert hardened["moved"] == [[0, True]] * 5
    assert hardened["nothing_from_nothing"]
    assert hardened["overflow"]


def test_there_are_no_core_dumps_and_it_is_closed_to_others(hardened: dict[str, Any]) -> None:
    assert hardened["core"] == [0, 0]
    assert hardened["dumpable"] == 0
    assert not hardened["others_may_open_it"]


def test_its_proof_finds_nothing_and_leaves_the_learners_as_they_were(hardened: dict[str, Any]) -> None:
    assert hardened["proof"]["found"] == 0
    assert hardened["proof"]["scanned"] > 10**8
    assert hardened["proof"]["unreadable"] == 0
    assert hardened["changed"] == []
    assert re.search(r"^burn proof: of a test query nothing is left in \d+ MB of memory", hardened["said"][-1])


def test_a_method_that_keeps_a_copy_is_refused_with_the_place(hardened: dict[str, Any]) -> None:
    """8 images of 16×16 as floats, of which rows of 16 hold a needle each two or three times over."""
    found = re.match(r"of a test query that was burned, (\d+) bytes as floats in \S.*, from 0x", hardened["hoarder"])
    assert found
    assert 8 * 256 * 4 / 2 <= int(found[1]) <= 8 * 256 * 4 * 2
    assert "no private image was read" in hardened["hoarder"]
    assert "\n" not in hardened["hoarder"]


def test_a_process_that_was_not_started_for_it_is_refused_with_all_that_is_missing() -> None:
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
    ],
)
def test_one_missing_part_is_enough(name: str, value: str, part: str) -> None:
    code = "from crodobo.burn.hardening import harden; harden()"
    variables = launch.environment() | {name: value}
    failed = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True)
    assert re.search(rf"NotHardened: strict burning cannot start: {part}[^;]*\. ", failed.stderr)


def test_a_started_process_does_not_start_itself_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.MARK, str(os.getpid()))
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    launch.relaunch()


def test_a_child_of_such_a_process_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.MARK, str(os.getppid()))
    assert not launch.launched()


def test_a_preload_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/their/library.so")
    assert launch.environment()["LD_PRELOAD"] == f"{allocator.LIBRARY}:/their/library.so"


def test_without_our_library_others_stand_in_and_say_what_they_leave(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_without_any_allocator_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator, "ALLOCATORS", ())
    with pytest.raises(NotHardened, match="C compiler") as refusal:
        launch.environment()
    assert "\n" not in str(refusal.value)
