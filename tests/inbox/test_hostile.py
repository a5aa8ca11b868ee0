"""Senders who mean harm: nothing outside the inbox is touched, nothing is deleted unpredicted, no start is blocked."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crodobo.errors import BadData, BadImage
from crodobo.inbox.adapt import adapt
from crodobo.inbox.arrivals import Changed, Inbox
from crodobo.inbox.deletion import PREFIX
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.walk import DEEPEST, Arrival

Picture = Callable[[int], bytes]
Put = Callable[..., Path]
Make = Callable[..., AdaptSettings]
Rows = Callable[[Path], list[dict[str, str]]]


@pytest.fixture
def box(inbox: Path) -> Inbox:
    return Inbox(inbox, inbox / "quarantine", recursive=True)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside the inbox with a file that nobody may touch."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "precious.png").write_bytes(b"precious")
    (folder / "precious.png").chmod(0o600)
    return folder


def only(box: Inbox) -> Arrival:
    (arrival,) = box.scan()
    return arrival


def link_in_place_of(folder: Path, victim: Path) -> None:
    folder.rename(folder.with_name("moved away"))
    folder.symlink_to(victim)


def like(path: Path, other: Path) -> None:
    """Give a file the times of another one."""
    status = other.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("depth", ["sub", "sub/deep/deeper"])
def test_a_folder_that_becomes_a_link_leads_to_nothing_outside(
    depth: str, box: Inbox, put: Put, victim: Path, inbox: Path
) -> None:
    path = put(f"{depth}/precious.png", b"precious")
    like(path, victim / "precious.png")
    arrival = only(box)
    inside = (inbox / depth).relative_to(inbox).parts[1:]
    if inside:
        (victim / Path(*inside)).mkdir(parents=True)
        (victim / "precious.png").rename(victim / Path(*inside) / "precious.png")
    precious = victim.joinpath(*inside, "precious.png")
    link_in_place_of(inbox / "sub", victim)
    with pytest.raises(Changed):
        box.read(arrival)
    assert not box.delete(arrival)
    assert not box.move_to_quarantine(arrival, "it is damaged")
    assert precious.read_bytes() == b"precious"
    assert [each.name for each in victim.rglob("*") if each.is_file()] == ["precious.png"]
    assert not [each for each in box.scan() if each.name.startswith("sub")]


def test_no_file_outside_is_deleted_by_adapt_when_a_folder_becomes_a_link_after_the_read(
    make: Make, put: Put, picture: Picture, inbox: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("sub/a.png", picture(1))
    (victim / "a.png").write_bytes(picture(2)[: path.stat().st_size].ljust(path.stat().st_size))
    like(victim / "a.png", path)
    append = PredictionFile.append

    def swap_then_append(self: PredictionFile, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        link_in_place_of(inbox / "sub", victim)
        append(self, rows)
        (inbox / "moved away" / "a.png").unlink()  # or it would be predicted as a new file

    monkeypatch.setattr(PredictionFile, "append", swap_then_append)
    adapt(make(recursive=True))
    assert sorted(each.name for each in victim.iterdir()) == ["a.png", "precious.png"]


@pytest.mark.parametrize("how", ["another file", "the same file, written to", "deleted and made again"])
def test_an_image_that_is_swapped_in_after_the_read_is_predicted_before_it_is_deleted(
    how: str,
    make: Make,
    put: Put,
    picture: Picture,
    inbox: Path,
    rows_of: Rows,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has the same name, size and time."""
    first = picture(1)
    second = picture(2)
    size = max(len(first), len(second))
    first, second = first.ljust(size, b"\0"), second.ljust(size, b"\0")
    path = put("a.png", first)
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    append = PredictionFile.append

    def swap_then_append(self: PredictionFile, rows: list[tuple[Arrival, tuple[str, ...]]]) -> None:
        if not self.rows:
            if how == "another file":
                path.rename(inbox / ".kept")
            elif how == "deleted and made again":
                path.unlink()
            path.write_bytes(second)
            os.utime(path, ns=times)
        append(self, rows)

    monkeypatch.setattr(PredictionFile, "append", swap_then_append)
    read: list[bytes] = []
    real = Inbox.read

    def remember(self: Inbox, arrival: Arrival) -> bytes:
        read.append(real(self, arrival))
        return read[-1]

    monkeypatch.setattr(Inbox, "read", remember)
    predicted = sum(adapt(make())["predicted"] for _ in range(2))
    assert read == [first, second]
    assert (predicted, len(rows_of(make().predictions))) == (2, 2)
    assert not path.exists()


def test_a_quarantine_that_a_sender_made_a_link_is_refused(inbox: Path, victim: Path) -> None:
    (inbox / "quarantine").symlink_to(victim)
    with pytest.raises(BadData, match=r"cannot be created \(it is a file or a link\)"):
        Inbox(inbox, inbox / "quarantine")
    (inbox / "sub").symlink_to(victim)
    with pytest.raises(BadData, match=r"cannot be created \(it is a file or a link\)"):
        Inbox(inbox, inbox / "sub" / "quarantine")


def test_no_reason_is_written_through_a_link(box: Inbox, put: Put, inbox: Path, victim: Path) -> None:
    put("a.png", b"x")
    (inbox / "quarantine" / ".a.png.reason.txt.unfinished").symlink_to(victim / "precious.png")
    assert box.move_to_quarantine(only(box), "it is damaged")
    assert (victim / "precious.png").read_bytes() == b"precious"


def test_a_file_that_takes_the_name_at_the_last_moment_is_not_put_in_quarantine(
    box: Inbox, put: Put, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("a.png", b"x")
    arrival, rename = only(box), os.rename

    def swap_then_rename(*names: str, **folders: int) -> None:
        put(".new", b"y").replace(inbox / "a.png")
        rename(*names, **folders)

    monkeypatch.setattr(os, "rename", swap_then_rename)
    assert not box.move_to_quarantine(arrival, "it is damaged")
    assert (inbox / "a.png").read_bytes() == b"y"
    assert not list((inbox / "quarantine").iterdir())


@pytest.mark.parametrize("recursive", [False, True])
def test_no_entry_of_the_inbox_blocks_the_start(
    recursive: bool, make: Make, put: Put, picture: Picture, inbox: Path, rows_of: Rows
) -> None:
    put("a.png", picture(1))
    for name in (PREFIX, f"{PREFIX}.", f"{PREFIX}..", f"{PREFIX}\n"):
        (inbox / name).touch()
    for name in (f"{PREFIX}d", f"{PREFIX}d/{PREFIX}e", "d", f"d/{PREFIX}f", "e.part"):
        (inbox / name).mkdir()
    os.mkfifo(inbox / f"{PREFIX}pipe")
    (inbox / "circle.png").symlink_to("circle.png")
    (inbox / f"{PREFIX}circle").symlink_to(f"{PREFIX}circle")
    os.utime(inbox / "circle.png", (1, 1), follow_symlinks=False)
    deep = inbox.joinpath(*["deep"] * (DEEPEST + 20))
    deep.mkdir(parents=True)
    summary = adapt(make(recursive=recursive, watch=False))
    assert [row["file"] for row in rows_of(make().predictions)] == ["a.png"]
    assert summary["predicted"] == 1


def test_a_folder_that_cannot_be_read_or_emptied_is_left_alone(inbox: Path, put: Put) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can read and write everything")
    for name, mode in (("unreadable", 0o300), ("closed", 0o600), ("read-only", 0o500)):
        put(f"{name}/a.png", b"x")
        (inbox / name).chmod(mode)
    try:
        box = Inbox(inbox, inbox / "quarantine", recursive=True)
        assert not box.scan()
        assert box.left == {"unreadable folders": 2, "read-only folders": 1}
    finally:
        for name in ("unreadable", "closed", "read-only"):
            (inbox / name).chmod(0o700)


def test_a_crash_between_giving_a_name_back_and_removing_the_other_makes_no_second_file(
    box: Inbox, put: Put, inbox: Path
) -> None:
    put("a.png", b"x")
    os.link(inbox / "a.png", inbox / f"{PREFIX}a.png")
    (half,) = box.half_deleted()
    box.finish_deletion(half, predicted=False)
    assert [path.name for path in inbox.iterdir() if path.is_file()] == ["a.png"]


def test_a_link_in_place_of_a_file_is_not_read(box: Inbox, put: Put, inbox: Path, victim: Path) -> None:
    path = put("sub/a.png", b"precious")
    arrival = only(box)
    path.unlink()
    path.symlink_to(victim / "precious.png")
    with pytest.raises((Changed, BadImage)):
        box.read(arrival)
    assert not box.delete(arrival)
    assert (victim / "precious.png").read_bytes() == b"precious"
