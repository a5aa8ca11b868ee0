"""The inbox: which files it lists, which it waits for, and how it deletes them or moves them to the quarantine."""

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGURG

import pytest

from crodobo.errors import BadData, BadImage, CrodoboError
from crodobo.inbox import arrivals, deletion
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Changed, Inbox, is_being_written
from crodobo.inbox.walk import Arrival

Put = Callable[..., Path]


@pytest.fixture
def box(inbox: Path) -> Inbox:
    return Inbox(inbox, inbox / "quarantine")


def names(found: list[Arrival]) -> list[str]:
    return [arrival.name for arrival in found]


def only(box: Inbox) -> Arrival:
    (arrival,) = box.scan()
    return arrival


def test_the_oldest_file_comes_first(box: Inbox, put: Put) -> None:
    for name, age in (("b", 10), ("a", 30), ("c", 20)):
        put(name, b"x", age)
    assert names(box.scan()) == ["a", "c", "b"]


def test_hidden_files_unfinished_files_and_folders_are_ignored(box: Inbox, put: Put, inbox: Path) -> None:
    for name in (".hidden.png", "a.png.part", "b.PARTIAL", "c.tmp", "d.crdownload", "folder/e.png", "f.png"):
        put(name, b"x")
    os.mkfifo(inbox / "pipe")
    assert names(box.scan()) == ["f.png"]


def test_recursive_looks_into_folders_but_never_into_the_quarantine(inbox: Path, put: Put) -> None:
    for name in ("a/b/c.png", "a/.hidden/d.png", "quarantine/e.png"):
        put(name, b"x")
    by_another_path = inbox.parent / "a link"
    by_another_path.symlink_to(inbox)
    for quarantine in (inbox / "quarantine", inbox / "a" / ".." / "quarantine", by_another_path / "quarantine"):
        assert names(Inbox(inbox, quarantine, recursive=True).scan()) == ["a/b/c.png"]


def test_a_link_to_a_folder_is_a_folder_and_other_links_are_files(box: Inbox, inbox: Path, tmp_path: Path) -> None:
    (inbox / "folder").symlink_to(tmp_path)
    (inbox / "image.png").symlink_to(tmp_path / "nowhere.png")
    assert names(box.scan()) == ["image.png"]


def test_a_link_is_not_followed(box: Inbox, inbox: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere.png").write_bytes(b"content")
    (inbox / "image.png").symlink_to(tmp_path / "elsewhere.png")
    with pytest.raises(BadImage, match="it is a link"):
        box.read(only(box))


def test_any_file_name_is_accepted(box: Inbox, put: Put) -> None:
    strange = [b'a,"b"\n\r.png', b"\xff\xfe.png", "ä €.png".encode(), b" ", b"-rf", b"'"]
    for name in strange:
        put(name, b"content")
    found = box.scan()
    assert {os.fsencode(name) for name in names(found)} == set(strange)
    assert all(box.read(arrival) == b"content" for arrival in found)
    assert all(box.delete(arrival) for arrival in found)
    assert not box.scan()


def test_an_old_file_is_ready_when_first_seen(box: Inbox, put: Put) -> None:
    put("a", b"x", age=600)
    assert box.unchanged_for(only(box)) > PATIENCE


@pytest.mark.parametrize("age", [0, 30, -3600])
def test_a_recent_or_future_file_time_is_not_trusted(
    age: float, box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a", b"x", age)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert box.unchanged_for(only(box)) < SETTLE
    now += 100
    assert box.unchanged_for(only(box)) == pytest.approx(100)


def test_a_file_that_changes_is_observed_anew(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    put("a", b"x", age=1)
    first = only(box)
    now += 10
    assert box.unchanged_for(first) == pytest.approx(10)
    put("a", b"xy", age=0)
    second = only(box)
    assert (box.unchanged_for(second), box.unchanged_for(first)) == (0, 0)
    with pytest.raises(Changed):
        box.read(first)
    assert box.read(second) == b"xy"


def test_a_file_that_is_open_for_writing_is_not_read(box: Inbox, put: Put) -> None:
    path = put("a", b"x")
    arrival = only(box)
    with path.open("ab"), pytest.raises(Changed):
        box.read(arrival)
    assert box.read(arrival) == b"x"


def test_readers_do_not_count_as_writers(box: Inbox, put: Put) -> None:
    path = put("a", b"x")
    with path.open("rb") as file:
        assert not is_being_written(file.fileno())
        assert box.read(only(box)) == b"x"


def test_a_writer_that_opens_the_file_during_the_check_does_not_end_the_process(
    box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default signal for the holder of a lease, SIGIO, would end it."""
    path = put("a", b"x")
    heard: list[int] = []
    before = [(number, signal.signal(number, lambda got, _: heard.append(got))) for number in (signal.SIGIO, SIGURG)]
    real = fcntl.fcntl

    def with_a_writer(descriptor: int, command: int, argument: int) -> None:
        real(descriptor, command, argument)
        if (command, argument) == (fcntl.F_SETLEASE, fcntl.F_RDLCK):
            with pytest.raises(BlockingIOError):
                os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    monkeypatch.setattr(fcntl, "fcntl", with_a_writer)
    try:
        assert box.read(only(box)) == b"x"
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert heard == [SIGURG], "without a handler it does nothing"


def test_reading_leaves_signal_handlers_unchanged(box: Inbox, put: Put) -> None:
    put("a", b"x")
    before = signal.getsignal(signal.SIGIO)
    box.read(only(box))
    assert signal.getsignal(signal.SIGIO) is before


def test_a_disk_without_leases_is_readable(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lease(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    put("a", b"x")
    monkeypatch.setattr("fcntl.fcntl", no_lease)
    assert box.read(only(box)) == b"x"


def test_an_unreadable_file_gives_the_reason(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def closed(path: object, *rest: object, **named: object) -> int:
        if path == "a":
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *rest, **named)  # type: ignore[arg-type]

    put("a", b"x")
    arrival = only(box)
    monkeypatch.setattr(os, "open", closed)
    with pytest.raises(BadImage, match=r"it cannot be read \(Permission denied\)"):
        box.read(arrival)


def test_a_file_that_is_too_large_is_not_read(box: Inbox, inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "LARGEST", 2**20)
    with (inbox / "a").open("wb") as file:
        file.truncate(2**20 + 1)
    with pytest.raises(BadImage, match="more than 1 MB"):
        box.read(only(box))


def test_a_file_that_is_gone_counts_as_changed(box: Inbox, put: Put, inbox: Path) -> None:
    path = put("a", b"x")
    arrival = only(box)
    path.unlink()
    with pytest.raises(Changed):
        box.read(arrival)
    assert not box.delete(arrival)
    assert not box.move_to_quarantine(arrival, "it is damaged")
    assert not list((inbox / "quarantine").iterdir())


def test_a_newer_file_of_the_same_name_is_neither_deleted_nor_quarantined(box: Inbox, put: Put) -> None:
    put("a", b"x")
    arrival = only(box)
    path = put("a", b"y", age=100)
    assert not box.delete(arrival)
    assert not box.move_to_quarantine(arrival, "it is damaged")
    assert path.read_bytes() == b"y"


def test_a_failing_disk_is_not_mistaken_for_a_missing_file(
    box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    put("a", b"x")
    arrival = only(box)
    monkeypatch.setattr("crodobo.inbox.arrivals.status_of", broken)
    with pytest.raises(CrodoboError, match=r"cannot be deleted \(Input/output error\)"):
        box.delete(arrival)


def test_a_file_that_cannot_be_deleted_raises_an_error(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    put("a", b"x")
    arrival = only(box)
    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(CrodoboError, match="has its prediction but cannot be deleted"):
        box.delete(arrival)


def test_a_file_is_quarantined_with_the_reason(box: Inbox, put: Put, inbox: Path) -> None:
    put("a.png", b"x")
    assert box.move_to_quarantine(only(box), "it is damaged")
    assert (inbox / "quarantine" / "a.png").read_bytes() == b"x"
    assert (inbox / "quarantine" / "a.png.reason.txt").read_text() == "a.png: it is damaged\n"
    assert not box.scan()


def test_files_of_the_same_name_are_quarantined_side_by_side(inbox: Path, put: Put) -> None:
    box = Inbox(inbox, inbox / "quarantine", recursive=True)
    for content in (b"1", b"2", b"3"):
        put("a/b.png", content)
        assert box.move_to_quarantine(only(box), "it is damaged")
    found = {path.name: path.read_bytes() for path in (inbox / "quarantine").glob("*.png")}
    assert found == {"a_b.png": b"1", "a_b-1.png": b"2", "a_b-2.png": b"3"}
    assert len(list((inbox / "quarantine").glob("*.png.reason.txt"))) == 3


def test_a_file_named_like_a_reason_is_not_overwritten_by_one(box: Inbox, put: Put, inbox: Path) -> None:
    for name in ("a.png.reason.txt", "a.png"):
        put(name, name.encode())
        assert box.move_to_quarantine(only(box), "it is damaged")
    contents = [path.read_bytes() for path in (inbox / "quarantine").iterdir()]
    assert {b"a.png.reason.txt", b"a.png"} <= set(contents)
    assert len(contents) == 4


@pytest.mark.parametrize("name", [b"\xff\n.png", b"x" * 255, b"x." + b"y" * 253, b"x" * 245 + "ä.png".encode()])
def test_strange_and_long_names_are_quarantined(name: bytes, box: Inbox, put: Put, inbox: Path) -> None:
    for _ in range(2):
        put(name, b"x")
        assert box.move_to_quarantine(only(box), "it is damaged")
    reasons = list((inbox / "quarantine").glob("*.reason.txt"))
    assert [path.read_bytes() for path in reasons] == [name + b": it is damaged\n"] * 2


def test_a_removed_quarantine_is_created_again(box: Inbox, put: Put, inbox: Path) -> None:
    (inbox / "quarantine").rmdir()
    put("a.png", b"x")
    assert box.move_to_quarantine(only(box), "it is damaged")
    assert (inbox / "quarantine" / "a.png").exists()


def test_an_unwritable_quarantine_raises_an_error(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = put("a.png", b"x")
    monkeypatch.setattr("crodobo.inbox.quarantine.write_atomically", broken)
    with pytest.raises(CrodoboError, match=r"cannot be moved to the quarantine .* \(Input/output error\)"):
        box.move_to_quarantine(only(box), "it is damaged")
    assert path.exists()


def test_on_a_full_disk_a_file_is_quarantined_without_its_reason(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put("a.png", b"x")
    monkeypatch.setattr("crodobo.inbox.quarantine.write_atomically", full)
    assert box.move_to_quarantine(only(box), "it is damaged")
    assert [path.name for path in (inbox / "quarantine").iterdir()] == ["a.png"]


def test_files_that_cannot_be_moved_are_ignored_from_then_on(
    inbox: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # a folder that is read-only
    with pytest.raises(BadData, match="Make the folder writable, or keep the files") as raised:
        Inbox(inbox, tmp_path / "reasons")
    assert raised.value.settings == ("keep_files",)
    box = Inbox(inbox, tmp_path / "reasons", keep_files=True)
    path = put("a.png", b"x")
    assert box.move_to_quarantine(only(box), "it is damaged")
    assert path.exists()
    assert not box.scan()
    assert (tmp_path / "reasons" / "a.png.reason.txt").read_text() == "a.png: it is damaged\n"


def test_an_image_that_takes_the_name_at_the_last_moment_is_not_deleted(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a.png", b"old")
    arrival = only(box)
    delete = deletion.delete

    def replaced_just_before(*arguments: object) -> object:
        put(".new", b"newer content").rename(inbox / "a.png")
        return delete(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(deletion, "delete", replaced_just_before)
    assert not box.delete(arrival)
    assert (inbox / "a.png").read_bytes() == b"newer content"
    assert names(box.scan()) == ["a.png"]


@pytest.mark.parametrize("taken", [False, True], ids=["its name is free", "its name is taken"])
def test_a_half_deleted_file_is_deleted_or_gets_its_name_back(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    class Killed(BaseException): ...

    def kill(*_: object, **__: object) -> None:
        raise Killed

    for name in ("predicted.png", "not.png"):
        put(name, name.encode())
    for arrival in box.scan():
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", kill)
            with pytest.raises(Killed):
                box.delete(arrival)
    assert not box.scan()
    if taken:
        put("not.png", b"another")
    half = box.half_deleted()
    assert sorted(names(half)) == ["not.png", "predicted.png"]
    for arrival in half:
        box.finish_deletion(arrival, predicted=arrival.name == "predicted.png")
    assert not box.half_deleted()
    found = {arrival.name: box.read(arrival) for arrival in box.scan()}
    assert found == ({"not.png": b"another", "not-1.png": b"not.png"} if taken else {"not.png": b"not.png"})


def test_only_one_process_uses_an_inbox(inbox: Path) -> None:
    first, second = (Inbox(inbox, inbox / "quarantine") for _ in range(2))
    refused = pytest.raises(CrodoboError, match="Another process is taking files")
    with first.locked(), refused, second.locked():
        pass
    with second.locked():
        pass


def test_a_missing_inbox_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="There is no folder"):
        Inbox(tmp_path / "nowhere", tmp_path / "quarantine")


def test_an_inbox_that_vanishes_raises_an_error_even_if_another_folder_takes_its_place(box: Inbox, inbox: Path) -> None:
    inbox.rename(inbox.with_name("moved"))
    with pytest.raises(CrodoboError, match="is gone"):
        box.scan()
    inbox.mkdir()
    with pytest.raises(CrodoboError, match="is gone"):
        box.scan()


def test_a_subfolder_may_vanish(inbox: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("a/b.png", b"x")
    put("c.png", b"x")
    box = Inbox(inbox, inbox / "quarantine", recursive=True)
    real = os.open

    def gone(path: object, *rest: object, **named: object) -> int:
        if path == "a":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return real(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", gone)
    assert names(box.scan()) == ["c.png"]


def test_the_quarantine_cannot_be_the_inbox(inbox: Path) -> None:
    with pytest.raises(BadData, match="cannot be the inbox"):
        Inbox(inbox, inbox.parent / "." / inbox.name)


def test_the_quarantine_cannot_be_a_file(inbox: Path, put: Put) -> None:
    put("quarantine", b"x")
    with pytest.raises(BadData, match=r"quarantine .* cannot be created"):
        Inbox(inbox, inbox / "quarantine")


def test_a_quarantine_on_another_disk_is_refused(inbox: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == inbox.stat().st_dev:
        pytest.skip("there is no other disk")
    quarantine = memory / f"crodobo-test-{os.getpid()}"
    try:
        with pytest.raises(BadData, match="is on another disk"):
            Inbox(inbox, quarantine)
    finally:
        quarantine.rmdir()
