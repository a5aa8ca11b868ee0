"""Files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from crodobo.storage.files import write_atomically


def test_a_file_is_replaced(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", "one")
    write_atomically(tmp_path / "a", b"two")
    assert (tmp_path / "a").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", "one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", "two")
    assert (tmp_path / "a").read_text() == "one"
