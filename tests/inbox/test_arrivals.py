"""The inbox: what is seen in it, what is waited for, and what becomes of a file."""

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
from crodobo.inbox import arrivals
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Arrival, Changed, Inbox, is_being_written

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


def test_hidden_and_unfinished_files_and_folders_are_left_alone(box: Inbox, put: Put, inbox: Path) -> None:
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


def test_names_may_hold_anything(box: Inbox, put: Put) -> None:
    strange = [b'a,"b"\n\r.png', b"\xff\xfe.png", "ä €.png".encode(), b" ", b"-rf", b"'"]
    for name in strange:
        put(name, b"content")
    found = box.scan()
    assert {os.fsencode(name) for name in names(found)} == set(strange)
    assert all(box.read(arrival) == b"content" for arrival in found)
    assert all(box.delete(arrival) for arrival in found)
    assert not box.scan()


def test_an_old_file_has_settled_at_first_sight(box: Inbox, put: Put) -> None:
    put("a", b"x", age=600)
    assert box.unchanged_for(only(box)) > PATIENCE


@pytest.mark.parametrize("age", [0, 30, -3600])
def test_a_time_that_may_be_another_clocks_is_not_trusted(
    age: float, box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a", b"x", age)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert box.unchanged_for(only(box)) < SETTLE
    now += 100
    assert box.unchanged_for(only(box)) == 100


def test_a_file_that_changes_is_watched_from_then_on(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    put("a", b"x", age=1)
    first = only(box)
    now += 10
    assert box.unchanged_for(first) == 10
    put("a", b"xy", age=0)
    second = only(box)
    assert (box.unchanged_for(second), box.unchanged_for(first)) == (0, 0)
    with pytest.raises(Changed):
        box.read(first)
    assert box.read(second) == b"xy"


def test_a_file_that_is_open_to_be_written_is_not_read(box: Inbox, put: Put) -> None:
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


def test_a_writer_that_comes_while_we_look_does_not_end_the_process(
    box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would, by the signal that the holder of a lease usually gets."""
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
    assert heard == [SIGURG], "which does nothing where nobody listens"


def test_looking_leaves_the_programs_signals_as_they_were(box: Inbox, put: Put) -> None:
    put("a", b"x")
    before = signal.getsignal(signal.SIGIO)
    box.read(only(box))
    assert signal.getsignal(signal.SIGIO) is before


def test_a_disk_without_leases_is_read_all_the_same(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_lease(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    put("a", b"x")
    monkeypatch.setattr("fcntl.fcntl", no_lease)
    assert box.read(only(box)) == b"x"


def test_a_file_that_cannot_be_read_says_why(box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

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


def test_a_file_that_is_gone_has_changed(box: Inbox, put: Put, inbox: Path) -> None:
    path = put("a", b"x")
    arrival = only(box)
    path.unlink()
    with pytest.raises(Changed):
        box.read(arrival)
    assert not box.delete(arrival)
    assert not box.put_away(arrival, "it is damaged")
    assert not list((inbox / "quarantine").iterdir())


def test_a_file_that_came_under_the_same_name_is_not_deleted_and_not_put_away(box: Inbox, put: Put) -> None:
    put("a", b"x")
    arrival = only(box)
    path = put("a", b"y", age=100)
    assert not box.delete(arrival)
    assert not box.put_away(arrival, "it is damaged")
    assert path.read_bytes() == b"y"


def test_a_disk_that_fails_is_not_taken_for_a_file_that_is_gone(
    box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    put("a", b"x")
    arrival = only(box)
    monkeypatch.setattr(Path, "lstat", broken)
    with pytest.raises(CrodoboError, match="cannot be looked at"):
        box.delete(arrival)


def test_a_file_that_cannot_be_deleted_ends_it_with_a_sentence(
    box: Inbox, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    put("a", b"x")
    arrival = only(box)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CrodoboError, match="has its prediction but cannot be deleted"):
        box.delete(arrival)


def test_a_file_is_put_away_with_the_reason(box: Inbox, put: Put, inbox: Path) -> None:
    put("a.png", b"x")
    assert box.put_away(only(box), "it is damaged")
    assert (inbox / "quarantine" / "a.png").read_bytes() == b"x"
    assert (inbox / "quarantine" / "a.png.reason.txt").read_text() == "a.png: it is damaged\n"
    assert not box.scan()


def test_files_of_one_name_are_put_away_side_by_side(inbox: Path, put: Put) -> None:
    box = Inbox(inbox, inbox / "quarantine", recursive=True)
    for content in (b"1", b"2", b"3"):
        put("a/b.png", content)
        assert box.put_away(only(box), "it is damaged")
    found = {path.name: path.read_bytes() for path in (inbox / "quarantine").glob("*.png")}
    assert found == {"a_b.png": b"1", "a_b-1.png": b"2", "a_b-2.png": b"3"}
    assert len(list((inbox / "quarantine").glob("*.png.reason.txt"))) == 3


def test_a_file_that_is_named_like_a_reason_is_not_overwritten_by_one(box: Inbox, put: Put, inbox: Path) -> None:
    for name in ("a.png.reason.txt", "a.png"):
        put(name, name.encode())
        assert box.put_away(only(box), "it is damaged")
    contents = [path.read_bytes() for path in (inbox / "quarantine").iterdir()]
    assert {b"a.png.reason.txt", b"a.png"} <= set(contents)
    assert len(contents) == 4


@pytest.mark.parametrize("name", [b"\xff\n.png", b"x" * 255, b"x." + b"y" * 253, b"x" * 245 + "ä.png".encode()])
def test_strange_and_long_names_are_put_away_too(name: bytes, box: Inbox, put: Put, inbox: Path) -> None:
    for _ in range(2):
        put(name, b"x")
        assert box.put_away(only(box), "it is damaged")
    reasons = list((inbox / "quarantine").glob("*.reason.txt"))
    assert [path.read_bytes() for path in reasons] == [name + b": it is damaged\n"] * 2


def test_a_quarantine_that_was_removed_is_made_again(box: Inbox, put: Put, inbox: Path) -> None:
    (inbox / "quarantine").rmdir()
    put("a.png", b"x")
    assert box.put_away(only(box), "it is damaged")
    assert (inbox / "quarantine" / "a.png").exists()


def test_a_quarantine_that_cannot_be_written_to_is_said(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    path = put("a.png", b"x")
    monkeypatch.setattr(arrivals, "write_atomically", broken)
    with pytest.raises(CrodoboError, match=r"cannot be moved to the quarantine .* \(Input/output error\)"):
        box.put_away(only(box), "it is damaged")
    assert path.exists()


def test_on_a_full_disk_a_file_is_put_away_without_its_reason(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    put("a.png", b"x")
    monkeypatch.setattr(arrivals, "write_atomically", full)
    assert box.put_away(only(box), "it is damaged")
    assert [path.name for path in (inbox / "quarantine").iterdir()] == ["a.png"]


def test_files_that_cannot_be_moved_are_given_up_where_they_are(
    inbox: Path, put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # a folder that is read-only
    with pytest.raises(BadData, match="add --keep-files"):
        Inbox(inbox, tmp_path / "reasons")
    box = Inbox(inbox, tmp_path / "reasons", keep_files=True)
    path = put("a.png", b"x")
    assert box.put_away(only(box), "it is damaged")
    assert path.exists()
    assert not box.scan()
    assert (tmp_path / "reasons" / "a.png.reason.txt").read_text() == "a.png: it is damaged\n"


def test_an_image_that_takes_the_name_in_the_last_moment_is_not_deleted(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a.png", b"old")
    arrival = only(box)
    is_same = box.is_same

    def replaced_just_after(seen: Arrival) -> bool:
        same = is_same(seen)
        put(".new", b"newer content").rename(inbox / "a.png")
        return same

    monkeypatch.setattr(box, "is_same", replaced_just_after)
    assert not box.delete(arrival)
    assert (inbox / "a.png").read_bytes() == b"newer content"
    assert names(box.scan()) == ["a.png"]


@pytest.mark.parametrize("taken", [False, True], ids=["its name is free", "its name is taken"])
def test_a_file_that_was_half_deleted_ends_or_has_its_name_back(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    class Killed(BaseException): ...

    def kill(path: Path) -> None:
        raise Killed

    for name in ("predicted.png", "not.png"):
        put(name, name.encode())
    for arrival in box.scan():
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", kill)
            with pytest.raises(Killed):
                box.delete(arrival)
    assert not box.scan()
    if taken:
        put("not.png", b"another")
    half = box.half_deleted()
    assert sorted(names(half)) == ["not.png", "predicted.png"]
    for arrival in half:
        box.settle(arrival, predicted=arrival.name == "predicted.png")
    assert not box.half_deleted()
    found = {arrival.name: box.read(arrival) for arrival in box.scan()}
    assert found == ({"not.png": b"another", "not-1.png": b"not.png"} if taken else {"not.png": b"not.png"})


def test_an_inbox_is_used_by_one_at_a_time(inbox: Path) -> None:
    first, second = (Inbox(inbox, inbox / "quarantine") for _ in range(2))
    refused = pytest.raises(CrodoboError, match="another process is taking files")
    with first.to_oneself(), refused, second.to_oneself():
        pass
    with second.to_oneself():
        pass


def test_an_inbox_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no folder"):
        Inbox(tmp_path / "nowhere", tmp_path / "quarantine")


def test_an_inbox_that_vanishes_is_said_even_if_another_takes_its_place(box: Inbox, inbox: Path) -> None:
    inbox.rename(inbox.with_name("moved"))
    with pytest.raises(CrodoboError, match="is gone"):
        box.scan()
    inbox.mkdir()
    with pytest.raises(CrodoboError, match="is gone"):
        box.scan()


def test_a_folder_in_the_inbox_may_vanish(inbox: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    put("a/b.png", b"x")
    put("c.png", b"x")
    box = Inbox(inbox, inbox / "quarantine", recursive=True)
    real = os.scandir

    def gone(path: Path) -> object:
        if Path(path).name == "a":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return real(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert names(box.scan()) == ["c.png"]


def test_the_quarantine_cannot_be_the_inbox(inbox: Path) -> None:
    with pytest.raises(BadData, match="cannot be the inbox"):
        Inbox(inbox, inbox.parent / "." / inbox.name)


def test_the_quarantine_cannot_be_a_file(inbox: Path, put: Put) -> None:
    put("quarantine", b"x")
    with pytest.raises(BadData, match=r"quarantine .* cannot be made"):
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
