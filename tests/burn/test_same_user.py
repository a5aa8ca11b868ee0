"""Another process of the same user cannot read a strict process: not before its proof, not during it, not after it."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).parent
SECRET = "a private image that nobody may read"
# Root may read every process, so that both sides run as somebody else. They may still read all files, such as a Python
# in a home folder; that does not open any process.
FILES = "=-all,+dac_read_search"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps{FILES}", f"--ambient-caps{FILES}")
AS_USER = NOBODY if os.geteuid() == 0 else ()


class Talking(NamedTuple):
    """A process that writes a line and waits for one."""

    process: subprocess.Popen[str]

    def hear(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()


@contextmanager
def talking(*arguments: object) -> Iterator[Talking]:
    command = [*AS_USER, sys.executable, *map(str, arguments)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": "/"}
    with subprocess.Popen(command, **pipes) as process:
        try:
            yield Talking(process)
        finally:
            process.kill()


def attacked(victim: Talking, goes_on: Callable[[], None]) -> dict[str, Any]:
    """What an attacker gets while the victim goes on, and whether it can read the secret when that is over."""
    with talking(HERE / "attacker.py", victim.process.pid) as attacker:
        assert attacker.hear() == "attacking"
        goes_on()
        try:
            maps = Path(f"/proc/{victim.process.pid}/maps").read_text()
        except PermissionError:
            maps = ""
        private = "\n".join(line for line in maps.splitlines() if re.search(" rw", line))
        attacker.tell(json.dumps({"secret": SECRET, "maps": private}))
        report: dict[str, Any] = json.loads(attacker.hear())
        return report


@pytest.fixture(scope="module", autouse=True)
def _attacks_work() -> None:
    """Skip where the attacks fail on an open process too: then they say nothing."""
    waiting = ("-c", f"held = bytearray({SECRET.encode()!r}); print('ready', flush=True); input()")
    if AS_USER and not shutil.which(AS_USER[0]):
        pytest.skip("root may read every process, and without setpriv these tests cannot run as another user")
    with talking(*waiting) as victim:
        assert victim.hear() == "ready"
        report = attacked(victim, lambda: None)
    if not {"open", "pidfd_getfd", "ptrace"} <= set(report["ways"]):
        pytest.skip("this system keeps processes of a user apart by itself")
    assert report["read"], "the attacker finds a secret that is there"


def test_no_process_of_the_user_reaches_the_memory_at_any_time() -> None:
    with talking(HERE / "victim.py") as victim:
        assert victim.hear() == "launched"

        def go_on() -> None:
            for word in ("proved", "private"):
                victim.tell()
                assert victim.hear() == word

        report = attacked(victim, go_on)
    assert report["tried"] >= 2, "the process that searches was seen"
    assert report["ways"] == []
    assert not report["read"]


def test_the_process_that_searches_has_ended_before_the_first_private_query() -> None:
    with talking(HERE / "victim.py") as victim:
        assert victim.hear() == "launched"
        victim.tell()
        assert victim.hear() == "proved"
        children = Path(f"/proc/{victim.process.pid}/task/{victim.process.pid}/children").read_text()
    assert children == ""
