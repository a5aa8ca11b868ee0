"""Checkpoints beside the work: what was asked to be saved is on disk when that is said, and no query waits for it."""

import threading

import pytest

from crodobo.session.saver import Saver


class Disk:
    """Takes what it is given, but only when it is let."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.busy, self.let_go = threading.Event(), threading.Event()

    def write(self, state: int) -> None:
        self.busy.set()
        self.let_go.wait(30)
        self.written.append(state)
        if state == 13:
            raise OSError("it is full")


def test_of_states_that_wait_for_a_slow_disk_the_newest_is_written_for_all() -> None:
    disk = Disk()
    saver = Saver(disk.write)
    first = saver.save(1)
    assert disk.busy.wait(30)
    others = [saver.save(number) for number in (2, 3, 4)]
    assert not any(each.done() for each in (first, *others))
    disk.let_go.set()
    assert [each.result(30) for each in (first, *others)] == [None] * 4
    assert disk.written == [1, 4]
    assert saver.save(5).result(30) is None
    assert disk.written == [1, 4, 5]
    saver.close()


def test_what_went_wrong_is_said_to_who_waits() -> None:
    disk = Disk()
    disk.let_go.set()
    saver = Saver(disk.write)
    with pytest.raises(OSError, match="it is full"):
        saver.save(13).result(30)
    assert saver.save(14).result(30) is None  # and the next is none the worse for it
    saver.close()


def test_closing_writes_what_still_waits() -> None:
    disk = Disk()
    saver = Saver(disk.write)
    saver.save(1)
    assert disk.busy.wait(30)
    saver.save(2)
    disk.let_go.set()
    saver.close()
    assert disk.written == [1, 2]
    with pytest.raises(RuntimeError):
        saver.save(3)
