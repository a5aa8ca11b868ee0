"""Files are replaced in one step, and appended to completely or not at all."""

import os
import stat
from pathlib import Path

import pytest

from crodobo.storage.files import append_durably, unfinished_name, write_atomically


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def test_a_file_is_replaced(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "one")
    write_atomically(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, full_disk: None) -> None:
    (tmp_path / "a").write_text("one")
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_private_file_is_readable_by_its_owner_alone_even_after_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "a"
    unfinished_name(path).write_text("left by a crash, readable by all")
    write_atomically(path, "secret", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_append_adds_nothing(tmp_path: Path, full_disk: None) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        with pytest.raises(OSError, match="No space"):
            append_durably(descriptor, b"two\n")
    finally:
        os.close(descriptor)
    assert path.read_bytes() == b"one\n"
