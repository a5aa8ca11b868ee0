"""Images in the memory of another process are found, and nothing is found where there are none."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crodobo.audit.memory import audit_memory
from crodobo.audit.probe_process import ProbeCase
from crodobo.audit.selftest import cases, search, self_test
from crodobo.data.decode import decode
from crodobo.errors import BadData

Holder = Callable[[bytes], int]


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secret") / "secret.png"
    values = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


@pytest.fixture
def holder() -> Iterator[Holder]:
    """Starts a process that holds some bytes and sleeps. Returns its number."""
    code = "import sys, time; held = sys.stdin.buffer.read(); print(flush=True); time.sleep(60)"
    started: list[subprocess.Popen[bytes]] = []

    def start(content: bytes) -> int:
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdin
        assert process.stdout
        process.stdin.write(content)
        process.stdin.close()
        process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


def normalised(secret: Path) -> bytes:
    unit = decode(secret.read_bytes(), (3, 16, 16)) / np.float32(255)
    content: bytes = ((unit - np.float32(0.5)) / np.float32(0.5)).tobytes()
    return content


@pytest.mark.parametrize(("make", "form"), [(Path.read_bytes, "encoded bytes"), (normalised, "CHW, normalised floats")])
def test_an_image_is_found_with_its_form(
    make: Callable[[Path], bytes], form: str, secret: Path, holder: Holder
) -> None:
    process = holder(make(secret))
    report = audit_memory(process, [secret], sizes=[16], stop=True)
    assert not report.sound
    assert any(form in find and str(secret) in find for find in report.found)
    assert Path(f"/proc/{process}/stat").read_text(encoding="utf-8").split()[2] != "T", "it continues after the search"


def test_nothing_is_found_in_a_process_without_the_image(secret: Path, holder: Holder) -> None:
    report = audit_memory(holder(b""), [secret], contents=[b"nobody has this"], sizes=[16])
    assert report.found == []
    assert "all that process" in report.checked[0]


def test_bytes_are_found(holder: Holder) -> None:
    report = audit_memory(holder(bytes(range(50, 90))), [], contents=[bytes(range(50, 90))])
    assert len(report.found) == 1
    assert "bytes of pattern 1" in report.found[0]


def test_a_missing_process_is_an_error() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with pytest.raises(BadData, match=f"There is no process {gone.pid}"):
        audit_memory(gone.pid, [], contents=[b"something long"])


@pytest.mark.parametrize(("contents", "words"), [([], "nothing to search for"), ([b"short"], "found by chance")])
def test_unusable_patterns_give_one_sentence(contents: list[bytes], words: str) -> None:
    with pytest.raises(BadData, match=words):
        audit_memory(os.getpid(), [], contents=contents)


SMALL = {"queries": 3, "query_size": 8, "image_size": 16, "channels": 1}


@pytest.mark.parametrize(
    "case",
    [
        ProbeCase(**SMALL, end="after an exception"),
        ProbeCase(**SMALL, learners=1, end="after Ctrl-C"),
        ProbeCase(**SMALL | {"image_size": 32, "channels": 3}, learners=1, backbone="vit_tiny_patch16_224"),
    ],
    ids=str,
)
def test_nothing_of_a_query_is_left_in_a_strict_process(case: ProbeCase) -> None:
    result = search(case)
    assert result.finds == []
    assert result.scanned > 10**8


def test_without_burning_the_self_test_finds_copies() -> None:
    report = self_test([ProbeCase(**SMALL, burn="off")])
    assert report.sound
    found = int(report.checked[0].split(": ")[1].split(" bytes")[0])
    assert found > 8 * 256, "more than one copy of a query of eight"


def test_a_search_that_finds_nothing_without_burning_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    from crodobo.audit import selftest
    from crodobo.burn.scan import Scan

    monkeypatch.setattr(selftest, "search", lambda case: Scan(scanned=1))
    report = self_test(cases(5, full=False))
    assert len(report.found) == 1
    assert "the search itself does not work" in report.found[0]


def test_the_full_self_test_covers_all_networks_engines_and_endings() -> None:
    full = cases(100, full=True)
    strict = {(case.backbone, case.learners, case.parallel) for case in full if case.burn == "strict"}
    assert {(network, count) for network, count, _ in strict} == {
        (network, count) for network in ("small", "resmlp_12_224", "vit_tiny_patch16_224") for count in (1, 2, 4)
    }
    assert {way for _, count, way in strict if count > 1} == {True, False}
    assert {case.end for case in full} == {"in order", "after an exception", "after Ctrl-C"}
    assert {case.queries for case in full} == {100}
    assert [case.burn for case in full].count("off") == 1
