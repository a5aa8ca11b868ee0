"""Checkpoints in the background: a future is done when its snapshot is on disk, and no query waits for the disk."""

import threading
from pathlib import Path
from typing import Any

import pytest

from crodobo.errors import CrodoboError
from crodobo.session import checkpoint_writer
from crodobo.session.checkpoint_writer import CheckpointData, CheckpointWriter
from crodobo.session.events import Log


class SlowDisk:
    """Writes only when it is released, and fails for snapshot 13."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.busy, self.released = threading.Event(), threading.Event()

    def save(self, folder: Path, tensors: object, identity: object, progress: dict[str, Any]) -> None:
        self.busy.set()
        self.released.wait(30)
        self.written.append(progress["queries"])
        if progress["queries"] == 13:
            raise OSError(28, "No space left on device")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SlowDisk:
    disk = SlowDisk()
    monkeypatch.setattr(checkpoint_writer, "save_checkpoint", disk.save)
    return disk


def snapshot(number: int) -> CheckpointData:
    return CheckpointData({}, {"queries": number}, number)


def test_only_the_newest_waiting_snapshot_is_written(disk: SlowDisk, tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, Log())
    first = writer.write_later(snapshot(1))
    assert disk.busy.wait(30)
    others = [writer.write_later(snapshot(number)) for number in (2, 3, 4)]
    assert not any(each.done() for each in (first, *others))
    disk.released.set()
    assert [each.result(30) for each in (first, *others)] == [None] * 4
    assert disk.written == [1, 4]
    writer.write(snapshot(5))
    assert disk.written == [1, 4, 5]
    writer.close()


def test_a_failure_reaches_everyone_who_waits_and_the_owner(disk: SlowDisk, tmp_path: Path) -> None:
    disk.released.set()
    failures: list[CrodoboError] = []
    writer = CheckpointWriter(tmp_path, Log(), failed=failures.append)
    with pytest.raises(CrodoboError, match="No space left"):
        writer.write_later(snapshot(13)).result(30)
    assert len(failures) == 1
    writer.write(snapshot(14))  # the next one is not affected
    writer.close()


def test_closing_writes_what_still_waits(disk: SlowDisk, tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, Log())
    writer.write_later(snapshot(1))
    assert disk.busy.wait(30)
    writer.write_later(snapshot(2))
    disk.released.set()
    writer.close()
    assert disk.written == [1, 2]
    with pytest.raises(RuntimeError):
        writer.write_later(snapshot(3))
