"""A ledger shows every change, survives crashes, has one writer, and holds nothing of a sample."""

import errno
import fcntl
import hashlib
import itertools
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from crodobo.audit.ledger import UNCLOSED, audit_ledger
from crodobo.errors import BadData, BadSettings, CrodoboError, Interrupted
from crodobo.ledger import ledger as module
from crodobo.ledger.entry import seal, unseal
from crodobo.ledger.ledger import Ledger, digest_of
from crodobo.ledger.signing import SigningKey, load_public_key, load_signing_key, make_key_pair
from crodobo.ledger.witness import Witness

SETTINGS = {"method": "crodobo", "seed": 0}


def write(path: Path, sessions: tuple[int, ...] = (3,), key: SigningKey | None = None) -> None:
    """Write a ledger: one session for each number, with that many queries."""
    after = 0
    for queries in sessions:
        with Ledger(path, key) as ledger:
            ledger.begin(SETTINGS, after)
            for number in range(queries):
                ledger.burned(
                    samples=8 + number, wiped=1000, scan={"found": 0, "seconds": 0.25} if number % 2 else None
                )
        after += queries


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def found(path: Path, **options: Any) -> list[str]:
    return audit_ledger(path, **options).found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.jsonl"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "key"
    make_key_pair(path)
    return path


@pytest.fixture(scope="module")
def key(key_file: Path) -> SigningKey:
    return load_signing_key(key_file)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    """A path to write to, and the lines of a ledger that was opened twice."""
    folder = tmp_path_factory.mktemp("plain")
    write(folder / "ledger.jsonl", (3, 2))
    return folder / "changed.jsonl", (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, key: SigningKey) -> tuple[Path, list[bytes]]:
    folder = tmp_path_factory.mktemp("signed")
    write(folder / "ledger.jsonl", (3, 2), key)
    return folder / "changed.jsonl", (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)


Written = tuple[Path, list[bytes]]


# --- contents ---


def test_each_query_has_a_line_between_the_header_and_the_closing_line(path: Path) -> None:
    write(path)
    header, *receipts, closed = entries(path)
    assert (header["kind"], header["sequence"], header["previous"], header["public_key"]) == ("header", 0, None, None)
    assert header["settings"] == digest_of(SETTINGS)
    assert [line["kind"] for line in receipts] == ["query"] * 3
    assert [(line["query"], line["samples"], line["wiped"]) for line in receipts] == [
        (1, 8, 1000),
        (2, 9, 1000),
        (3, 10, 1000),
    ]
    assert [line["scan"] for line in receipts] == [None, {"found": 0, "seconds": 0.25}, None]
    assert (closed["kind"], closed["end"], closed["queries"]) == ("closed", "finished", 3)
    assert [line["sequence"] for line in entries(path)] == list(range(5))
    assert found(path) == []


def test_each_line_repeats_the_sha256_of_the_line_before(path: Path) -> None:
    write(path)
    lines = path.read_bytes().splitlines()
    for before, line in itertools.pairwise(lines):
        content = before[: before.rindex(b',"hash":')]
        assert json.loads(line)["previous"] == hashlib.sha256(content).hexdigest() == json.loads(before)["hash"]


def test_names_are_random(tmp_path: Path) -> None:
    names = set()
    for place in ("a", "b"):
        write(tmp_path / place)
        names |= {line.get("id") or line.get("ledger") for line in entries(tmp_path / place)} - {None}
    assert len(names) == 2 * (3 + 1)


def test_a_receipt_takes_only_numbers(path: Path) -> None:
    write(path)
    receipt = {"format", "kind", "sequence", "id", "query", "time", "samples", "settings", "wiped", "scan"}
    assert set(entries(path)[1]) == receipt | {"previous", "hash"}
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS, 3)
        before = path.read_bytes()
        for scan in ({"file": "private.png"}, {"Private.png": 1}, {"x": [1]}, {"found": float("nan")}):
            with pytest.raises(CrodoboError, match="only numbers"):
                ledger.burned(samples=1, wiped=1, scan=scan)  # type: ignore[arg-type]
        with pytest.raises(CrodoboError, match="only numbers"):
            ledger.burned(samples=-1, wiped=1)
        assert path.read_bytes() == before
    assert found(path) == []


def test_nothing_is_written_before_begin_or_after_close(path: Path) -> None:
    with Ledger(path) as ledger:
        with pytest.raises(CrodoboError, match="between `begin` and the end"):
            ledger.burned(samples=1, wiped=1)
        assert not path.exists()
    assert not path.exists()
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
    with pytest.raises(CrodoboError, match="between `begin` and the end"):
        ledger.burned(samples=1, wiped=1)
    assert [line["kind"] for line in entries(path)] == ["header", "closed"]


@pytest.mark.parametrize(("error", "end"), [(Interrupted("stop"), "stopped"), (ZeroDivisionError(), "failed")])
def test_the_closing_line_says_how_it_ended(error: Exception, end: str, path: Path) -> None:
    ledger = Ledger(path)
    ledger.begin(SETTINGS)
    with pytest.raises(type(error)), ledger:
        raise error
    assert entries(path)[-1]["end"] == end
    assert found(path) == []


def test_a_receipt_is_on_disk_when_the_call_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_size), real(descriptor)))
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        ledger.burned(samples=1, wiped=1)
        assert synced[-1] == path.stat().st_size


def test_a_full_disk_raises_an_error_and_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        real(descriptor, content[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    ledger = Ledger(path)
    ledger.begin(SETTINGS)
    before = path.read_bytes()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CrodoboError, match="No space left on device"):
        ledger.burned(samples=1, wiped=1)
    assert path.read_bytes() == before
    monkeypatch.undo()
    ledger.burned(samples=1, wiped=1)
    ledger.close()
    assert found(path) == []


def test_a_ledger_that_is_replaced_while_it_is_open_is_noticed(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        path.rename(path.with_name("moved"))
        path.write_text("", encoding="utf-8")
        with pytest.raises(CrodoboError, match="replaced"):
            ledger.burned(samples=1, wiped=1)
        path.unlink()
        path.with_name("moved").rename(path)


# --- reopening ---


def test_a_reopened_ledger_continues_numbers_and_hashes(path: Path) -> None:
    write(path, (2, 0, 1))
    kinds = [line["kind"] for line in entries(path)]
    assert kinds == ["header", "query", "query", "closed", "resumed", "closed", "resumed", "query", "closed"]
    assert [line["query"] for line in entries(path) if line["kind"] == "query"] == [1, 2, 3]
    assert [line["queries"] for line in entries(path) if line["kind"] == "closed"] == [2, 2, 3]
    assert found(path) == []


@pytest.mark.parametrize("left", [1, 20, 100, -2])
def test_a_torn_last_line_is_cut_off_and_reported(left: int, path: Path) -> None:
    write(path, (2,))
    *whole, last = path.read_bytes().splitlines(keepends=True)
    torn = last[:left]
    path.write_bytes(b"".join(whole) + torn)
    assert any("cut short" in text for text in found(path, unclosed=True))
    write(path, (1,))
    assert path.read_bytes().startswith(b"".join(whole))
    resumed = entries(path)[len(whole)]
    assert (resumed["kind"], resumed["cut"]) == ("resumed", len(torn))
    report = audit_ledger(path)
    assert report.sound
    assert any(f"{len(torn)} bytes of a torn line" in text for text in report.noted)


def test_a_last_line_without_its_line_end_is_kept(path: Path) -> None:
    write(path, (2,))
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert found(path) == ["Line 4 has no line end: it was cut short, by a crash or by hand."]
    write(path, (1,))
    assert path.read_bytes().startswith(content)
    assert found(path) == []


@pytest.mark.parametrize("left", [0, 1, 50])
def test_a_torn_header_is_rewritten(left: int, path: Path) -> None:
    write(path)
    path.write_bytes(path.read_bytes()[:left])
    write(path)
    assert entries(path)[0]["kind"] == "header"
    assert found(path) == []


@pytest.mark.parametrize("left", [0, 3, 30])
def test_zeros_left_by_a_power_failure_are_cut_off(left: int, path: Path) -> None:
    write(path)
    content = path.read_bytes()
    path.write_bytes(content + content.splitlines()[-1][:left] + bytes(100))
    write(path, (1,))
    assert path.read_bytes().startswith(content)
    assert found(path) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [lines[0], lines[1].replace(b'"samples":8', b'"samples":9'), *lines[2:]],
        lambda lines: [lines[0], *lines[2:]],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [*lines[:-2], lines[-2].rstrip(b"\n") + lines[-1].rstrip(b"\n")],
        lambda lines: [*lines[:-1], lines[-1].replace(b"finished", b"stopped")],
        lambda lines: [*lines, b"precious"],
        lambda lines: [b"precious"],
        lambda lines: [b"a,b\n", b"1,2\n"],
    ],
    ids=["edited", "dropped", "swapped", "joined", "last edited", "other tail", "other file", "other lines"],
)
def test_any_other_damage_is_refused_and_the_file_is_unchanged(
    damage: Callable[[list[bytes]], list[bytes]], path: Path
) -> None:
    write(path)
    path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
    before = path.read_bytes()
    with pytest.raises(BadData, match=r"is damaged and was not changed\. Line .*Move it"):
        Ledger(path)
    assert path.read_bytes() == before


def test_each_receipt_names_the_settings_of_its_session(path: Path) -> None:
    write(path, (1,))
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS | {"seed": 1}, after=1)
        ledger.burned(samples=1, wiped=1)
    first, second = [line["settings"] for line in entries(path) if line["kind"] == "query"]
    assert (first, second) == (digest_of(SETTINGS), digest_of(SETTINGS | {"seed": 1}))
    assert found(path) == []


@pytest.mark.parametrize(
    ("after", "note"),
    [
        (4, "query 4 has predictions and no receipt: the process ended in between."),
        (6, "queries 4 to 6 were processed without this ledger."),
        (1, "it continues from the checkpoint after query 1; queries 2 to 3 were repeated and erased again."),
        (2, "it continues from the checkpoint after query 2; query 3 was repeated and erased again."),
        (0, "the stream restarts with query 1."),
    ],
)
def test_notes_explain_the_gaps_after_a_kill(after: int, note: str, path: Path) -> None:
    write(path)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))  # killed: no closing line
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS, after)
        ledger.burned(samples=1, wiped=1)
    report = audit_ledger(path)
    assert report.sound
    assert any(text.endswith(note) for text in report.noted), report.noted
    assert any("the process before was killed" in text for text in report.noted)
    assert entries(path)[-2]["query"] == after + 1


# --- one writer ---


def hold(path: Path, ready: Any, leave: Any) -> None:
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        ready.set()
        leave.wait(30)


def test_a_second_writer_is_refused_in_another_process_and_in_this_one(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=hold, args=(path, ready, leave))
    process.start()
    try:
        assert ready.wait(30)
        with pytest.raises(CrodoboError, match="Another process is writing to the ledger"):
            Ledger(path)
        report = audit_ledger(path)
        assert report.sound, "a ledger in use need not be closed"
        assert "A process is writing to it at the moment, and names an end that is in it." in report.noted
    finally:
        leave.set()
        process.join(30)
    with Ledger(path), pytest.raises(CrodoboError, match="Another process"):
        Ledger(path)


def hold_lock(path: Path, ready: Any, leave: Any) -> None:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.set()
        leave.wait(30)


def write_on(path: Path, key_file: Path, ready: Any, leave: Any) -> None:
    with Ledger(path, load_signing_key(key_file)) as ledger:
        ledger.begin(SETTINGS)
        for _ in range(3):
            ledger.burned(samples=8, wiped=1000)
        ready.set()
        leave.wait(30)


@contextmanager
def running(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """While another process is at this work."""
    context = multiprocessing.get_context("fork")
    ready, leave = context.Event(), context.Event()
    process = context.Process(target=target, args=(*arguments, ready, leave))
    process.start()
    try:
        assert ready.wait(30)
        yield
    finally:
        leave.set()
        process.join(30)


def cut(path: Path, lines: int) -> None:
    """Cut lines off at the end."""
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-lines]))


def test_a_lock_does_not_make_a_cut_ledger_pass(path: Path, key_file: Path) -> None:
    write(path, key=load_signing_key(key_file))
    cut(path, 2)
    with running(hold_lock, path):
        report = audit_ledger(path, public_key=load_public_key(key_file.with_name("key.pub")))
    assert report.found == [UNCLOSED]


def test_a_running_writer_shows_that_its_ledger_was_cut(path: Path, key_file: Path) -> None:
    public = load_public_key(key_file.with_name("key.pub"))
    with running(write_on, path, key_file):
        assert audit_ledger(path, public_key=public).sound
        cut(path, 2)
        report = audit_ledger(path, public_key=public)
    assert "names a last entry that is not in it: lines were cut off" in report.found[0]
    assert report.found[1] == UNCLOSED


def test_a_process_without_the_key_cannot_speak_for_the_writer(path: Path, key_file: Path) -> None:
    write(path, key=load_signing_key(key_file))
    cut(path, 2)
    last = entries(path)[-1]["hash"]
    impostor = Witness(entries(path)[0]["ledger"], lambda: str(last))
    try:
        report = audit_ledger(path, public_key=load_public_key(key_file.with_name("key.pub")))
    finally:
        impostor.close()
    assert "does not have the signing key" in report.found[0]
    assert report.found[1] == UNCLOSED


def test_another_ledger_of_the_same_key_does_not_pass_in_its_place(path: Path, key_file: Path) -> None:
    key = load_signing_key(key_file)
    write(path, key=key)
    own = entries(path)[0]["ledger"]
    (path.parent / "summary.json").write_text(json.dumps({"ledger": own}))
    assert not found(path, public_key=key.public, expect_ledger=own)
    path.unlink()
    write(path, key=key)
    assert found(path, expect_ledger=own) == [
        "It is another ledger than the expected one.",
        "It is another ledger than summary.json beside it names.",
    ]


def test_two_writers_that_begin_at_once_conflict(path: Path) -> None:
    first, second = Ledger(path), Ledger(path)  # no file exists yet
    first.begin(SETTINGS)
    with pytest.raises(CrodoboError, match="Another process"):
        second.begin(SETTINGS)
    first.close()
    assert found(path) == []


# --- audits ---


def changed(written: Written, lines: list[bytes]) -> Path:
    written[0].write_bytes(b"".join(lines))
    return written[0]


def test_an_intact_ledger_has_no_findings(plain: Written, signed: Written, key: SigningKey) -> None:
    assert found(changed(plain, plain[1])) == []
    assert found(changed(signed, signed[1]), public_key=key.public) == []


@given(data=st.data())
def test_any_edited_byte_is_found_with_its_line(data: st.DataObject, plain: Written) -> None:
    lines = list(plain[1])
    number = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[number]) - 1))
    byte = data.draw(st.integers(0, 255))
    assume(lines[number][place] != byte)
    lines[number] = lines[number][:place] + bytes([byte]) + lines[number][place + 1 :]
    texts = found(changed(plain, lines), unclosed=True)
    assert any(f"Line {number + 1} " in text for text in texts), texts


def test_a_flipped_bit_is_found_anywhere(plain: Written) -> None:
    """The same without randomness, in every seventh byte."""
    content = b"".join(plain[1])
    for place in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        assert found(changed(plain, [bytes(flipped)]), unclosed=True), place


@given(data=st.data())
def test_an_added_or_removed_byte_is_found(data: st.DataObject, plain: Written) -> None:
    content = b"".join(plain[1])
    place = data.draw(st.integers(0, len(content) - 1))
    added = data.draw(st.binary(max_size=1))
    rest = content[place + 1 :] if not added else content[place:]
    assert found(changed(plain, [content[:place], added, rest]), unclosed=True)


@pytest.mark.parametrize("number", range(9))
def test_any_dropped_line_is_found(number: int, plain: Written) -> None:
    assert len(plain[1]) == 9
    texts = found(changed(plain, plain[1][:number] + plain[1][number + 1 :]))
    missing = "Line 1 is not a header" if number == 0 else f"after {number - 1}: lines between them are missing"
    assert any((missing if number < 8 else "ends without a closing line") in text for text in texts), texts


@given(data=st.data())
def test_any_two_swapped_lines_are_found(data: st.DataObject, plain: Written) -> None:
    one, other = data.draw(st.lists(st.integers(0, 8), min_size=2, max_size=2, unique=True))
    lines = list(plain[1])
    lines[one], lines[other] = lines[other], lines[one]
    texts = found(changed(plain, lines), unclosed=True)
    assert any(f"Line {min(one, other) + 1} " in text for text in texts), texts


@given(number=st.integers(0, 8), place=st.integers(0, 9))
def test_any_repeated_line_is_found(number: int, place: int, plain: Written) -> None:
    lines = [*plain[1][:place], plain[1][number], *plain[1][place:]]
    assert found(changed(plain, lines), unclosed=True)


def test_a_line_of_another_ledger_is_found(plain: Written, tmp_path: Path) -> None:
    write(tmp_path / "other", (3, 2))
    other = (tmp_path / "other").read_bytes().splitlines(keepends=True)
    for number in range(1, 9):
        lines = [*plain[1][:number], other[number], *plain[1][number + 1 :]]
        assert any(f"Line {number + 1} does not follow" in text for text in found(changed(plain, lines)))
    assert found(changed(plain, plain[1] + other))


@pytest.mark.parametrize("kept", range(9))
def test_a_truncated_ledger_is_found(kept: int, plain: Written) -> None:
    """A cut back to an earlier closing line shows only against a hash that was kept elsewhere."""
    head = json.loads(plain[1][-1])["hash"]
    short = changed(plain, plain[1][:kept])
    earlier_close = kept == 5
    assert bool(found(short)) is not earlier_close
    assert found(short, expect_head=head)


def test_the_last_hash_is_compared_with_the_expected_one(plain: Written) -> None:
    path = changed(plain, plain[1])
    assert found(path, expect_head=json.loads(plain[1][-1])["hash"]) == []
    assert found(path, expect_head=json.loads(plain[1][-2])["hash"]) == [
        "The last hash is not the expected one: entries were added, cut off or rewritten."
    ]


def test_a_rewritten_end_shows_only_with_signatures_or_an_expected_hash(
    signed: Written, plain: Written, key: SigningKey
) -> None:
    for written, whose in ((plain, None), (signed, key)):
        head = json.loads(written[1][-1])["hash"]
        path = changed(written, written[1][:3])
        forger = Ledger(path, whose)
        forger._key = None  # the forger has no key
        forger.begin(SETTINGS, after=2)
        forger.burned(samples=64, wiped=1)
        forger.close()
        assert bool(found(path)) is (whose is not None)
        assert found(path, expect_head=head)


def rebuild(path: Path, changes: dict[int, dict[str, Any] | None]) -> None:
    """Change or drop lines and recompute numbers and hashes, as a forger would."""
    lines, previous = [], None
    for number, line in enumerate(path.read_bytes().splitlines()):
        change = changes.get(number, {})
        if change is not None:
            entry = unseal(line).entry.model_copy(update={"sequence": len(lines), "previous": previous} | change)
            lines.append(seal(entry))
            previous = unseal(lines[-1]).hash
    path.write_bytes(b"".join(line + b"\n" for line in lines))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({3: None}, "Line 4 closes a ledger of 3 queries, but there are 2"),
        ({2: None, 4: {"queries": 2}}, "Line 3 has another query number, or other settings"),
        ({2: {"settings": "0" * 64}}, "Line 3 has another query number, or other settings"),
        ({5: None}, "Line 6 comes after a closing line, but the ledger was not resumed"),
    ],
    ids=["a receipt less", "a gap", "other settings", "no resumption"],
)
def test_a_forgery_that_contradicts_itself_is_found(
    changes: dict[int, dict[str, Any] | None], sentence: str, path: Path
) -> None:
    write(path, (3, 1) if max(changes) == 5 else (3,))
    rebuild(path, {})
    assert found(path) == []
    rebuild(path, changes)
    assert any(text.startswith(sentence) for text in found(path)), found(path)


def test_traces_reported_by_a_scan_are_a_finding_but_no_damage(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        ledger.burned(samples=1, wiped=1, scan={"found": 2})
    assert found(path) == ["Line 2 reports traces of a query in memory, found after query 1 (2)."]
    write(path, (1,))


def test_a_clock_that_was_set_back_is_noted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, (1,))
    monkeypatch.setattr(module, "now", lambda: "2001-02-03T04:05:06.789+00:00")
    write(path, (1,))
    report = audit_ledger(path)
    assert report.sound
    assert any("the clock was set back" in text for text in report.noted)


def test_an_empty_ledger_and_a_missing_one(path: Path) -> None:
    with pytest.raises(BadData, match="not readable"):
        audit_ledger(path)
    path.parent.mkdir()
    path.write_bytes(b"")
    assert found(path) == ["The ledger is empty."]


# --- signatures ---


@given(data=st.data())
def test_any_edit_of_a_signed_ledger_is_found(data: st.DataObject, signed: Written, key: SigningKey) -> None:
    lines = list(signed[1])
    number = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.integers(0, len(lines[number]) - 1))
    byte = data.draw(st.integers(0, 255))
    assume(lines[number][place] != byte)
    lines[number] = lines[number][:place] + bytes([byte]) + lines[number][place + 1 :]
    texts = found(changed(signed, lines), public_key=key.public, unclosed=True)
    assert any(f"Line {number + 1} " in text for text in texts), texts


def test_each_line_of_a_signed_ledger_needs_a_valid_signature(signed: Written, key: SigningKey, tmp_path: Path) -> None:
    path = changed(signed, signed[1])
    report = audit_ledger(path, public_key=key.public)
    assert "9 signatures, with the given key." in report.checked
    assert "9 signatures, with the key named in its header." in audit_ledger(path).checked
    make_key_pair(tmp_path / "forger")
    forged = load_signing_key(tmp_path / "forger")
    forged.public = key.public  # the header names the true key, another one signs
    write(tmp_path / "forged", key=forged)
    texts = found(tmp_path / "forged", public_key=key.public)
    assert texts == [f"Line {number} has a signature that was not made with this key." for number in range(1, 6)]


def test_a_wrong_key_and_missing_signatures_are_found(
    signed: Written, plain: Written, tmp_path: Path, key: SigningKey
) -> None:
    other = load_public_key(make_key_pair(tmp_path / "other"))
    texts = found(changed(signed, signed[1]), public_key=other)
    assert "The header names another public key." in texts
    assert len([text for text in texts if "not made with this key" in text]) == 9
    assert found(changed(plain, plain[1]), public_key=key.public) == ["The ledger is not signed."]


def test_a_ledger_is_resumed_with_its_own_key_only(path: Path, key: SigningKey, tmp_path: Path) -> None:
    make_key_pair(tmp_path / "other")
    other = load_signing_key(tmp_path / "other")
    write(path, key=key)
    before = path.read_bytes()
    with pytest.raises(CrodoboError, match=r"is signed\. Use its signing key"):
        Ledger(path)
    with pytest.raises(CrodoboError, match=r"not made with this key|another key"):
        Ledger(path, other)
    write(tmp_path / "plain")
    with pytest.raises(CrodoboError, match=r"is not signed\. Do not sign"):
        Ledger(tmp_path / "plain", key)
    assert path.read_bytes() == before
    write(path, (1,), key)
    assert found(path, public_key=key.public) == []


def test_keys_are_read_as_pem_and_raw(key_file: Path, key: SigningKey, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    private = load_pem_private_key(key_file.read_bytes(), None)
    raw, raw_public = tmp_path / "raw", tmp_path / "raw.pub"
    raw.write_bytes(private.private_bytes_raw())
    raw_public.write_bytes(private.public_key().public_bytes_raw())
    assert load_signing_key(raw).public == key.public == load_public_key(raw_public)
    assert load_public_key(Path(f"{key_file}.pub")) == key.public
    assert key_file.stat().st_mode & 0o077 == 0, "readable by its owner alone"
    assert key.public in repr(key)


def test_invalid_key_files_give_one_sentence(key_file: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    nothing = tmp_path / "nothing"
    nothing.write_text("no key")
    for load in (load_signing_key, load_public_key):
        with pytest.raises(BadSettings, match=r"is not a valid .* key"):
            load(nothing)
        with pytest.raises(BadSettings, match="not readable"):
            load(tmp_path / "nowhere")
    with pytest.raises(BadSettings, match="is not a valid public key"):
        load_public_key(key_file)
    curve = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    nothing.write_bytes(curve.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with pytest.raises(BadSettings, match="another kind than Ed25519"):
        load_signing_key(nothing)
    nothing.write_bytes(curve.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(BadSettings, match="another kind than Ed25519"):
        load_public_key(nothing)
    with pytest.raises(CrodoboError, match="is not replaced"):
        make_key_pair(key_file)


def test_without_cryptography_everything_but_signatures_is_checked(
    signed: Written, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    report = audit_ledger(changed(signed, signed[1]))
    assert report.sound
    assert any("Whether the signatures are valid" in text for text in report.unseen)
    with pytest.raises(CrodoboError, match=r"pip install .crodobo\[sign\]"):
        load_signing_key(key_file)


# --- answers before the receipt ---


def test_a_query_that_is_answered_first_gets_the_receipt_its_answer_named(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        named = ledger.answered()
        assert ledger.burned(samples=8, wiped=100) == named
        assert ledger.burned(samples=8, wiped=100) != named
    kinds = [(entry["kind"], entry.get("query")) for entry in map(json.loads, path.read_text().splitlines())]
    assert kinds == [("header", None), ("answered", 1), ("query", 1), ("query", 2), ("closed", None)]
    found = audit_ledger(path)
    assert found.found == []
    assert any("2 receipts" in line for line in found.checked)


def test_a_process_that_ends_between_answer_and_receipt_is_noted_and_its_number_not_used_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.begin(SETTINGS)
    ledger.answered()
    os.close(ledger._descriptor)  # type: ignore[arg-type]  # as a kill does
    assert "Line 2: query 1 was answered and has no receipt yet." in audit_ledger(path, unclosed=True).noted
    with Ledger(path) as ledger:
        assert ledger.last_query == 1
        ledger.begin(SETTINGS, after=ledger.last_query)
        ledger.burned(samples=8, wiped=100)
        assert ledger.last_query == 2
    found = audit_ledger(path)
    assert found.found == []
    assert any("query 1 was answered and has no receipt: the process ended in between" in note for note in found.noted)


def test_a_receipt_with_another_id_than_the_answer_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.begin(SETTINGS)
        ledger.answered()
        ledger._open_id = "0" * 32
        ledger.burned(samples=8, wiped=100)
    assert audit_ledger(path).found == ["Line 3 has another id than the answer to query 1 named."]
