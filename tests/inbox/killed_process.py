"""A process that adapts to an inbox and is killed: at a named point, or at its n-th audit event after its start or
after the stream has begun.

Started by `runpy.run_path`, in a process that has the libraries loaded.
"""

import importlib
import os
import signal
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def to_another_folder(*_: Any, src_dir_fd: int, dst_dir_fd: int) -> bool:
    return src_dir_fd != dst_dir_fd


def at_call(
    number: int,
    function: Callable[..., Any],
    *,
    before: bool = False,
    only: Callable[..., bool] = lambda *_, **__: True,
) -> Callable[..., Any]:
    """A copy of the function that kills the process at its n-th call, among those with the arguments that count."""
    calls = 0

    def last(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        counts = only(*arguments, **named)
        calls += counts
        if before and counts and calls == number:
            die()
        result = function(*arguments, **named)
        if counts and calls == number:
            die()
        return result

    return last


def torn(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of the function that kills the process after two thirds of its bytes are written."""
    real = os.write

    def write(descriptor: int, content: Any) -> int:
        real(descriptor, content[: len(content) * 2 // 3])
        die()
        return 0

    def call(*arguments: Any, **named: Any) -> Any:
        os.write = write
        return function(*arguments, **named)

    return call


def count_events(number: int) -> None:
    events = 0

    def count(_: str, __: Any) -> None:
        nonlocal events
        events += 1
        if events == number:
            die()

    sys.addaudithook(count)


def arm(module: ModuleType, begun: list[Callable[[], None]], point: str, number: int) -> None:
    """Kill the process when it reaches the point for the n-th time."""
    from crodobo.inbox.arrivals import Inbox
    from crodobo.inbox.predictions import PredictionFile
    from crodobo.ledger.ledger import Ledger

    if point == "start":
        count_events(number)
    elif point == "stream":
        begun.append(lambda: count_events(number))
    elif point == "before the append":
        PredictionFile.append = at_call(number, PredictionFile.append, before=True)
    elif point == "after the append, before the delete":
        PredictionFile.append = at_call(number, PredictionFile.append)
    elif point == "in the middle of the rows":
        PredictionFile._write = torn(PredictionFile._write)
    elif point == "before the receipt":
        Ledger.burned = at_call(number, Ledger.burned, before=True)
    elif point == "in the middle of the receipt":
        Ledger.burned = torn(Ledger.burned)
    elif point == "after the receipt":
        Ledger.burned = at_call(number, Ledger.burned)
    elif point == "in the middle of the deletes":
        Inbox.delete = at_call(number, Inbox.delete)
    elif point == "before a torn row is cut off":
        os.ftruncate = at_call(number, os.ftruncate, before=True)
    elif point == "between reason and move":
        os.rename = at_call(number, os.rename, before=True, only=to_another_folder)
    elif point == "after the move":
        os.rename = at_call(number, os.rename, only=to_another_folder)
    elif point == "in the middle of the reason":
        os.replace = at_call(number, os.replace, before=True, only=lambda _, to, **__: str(to).endswith(".reason.txt"))
    elif point == "after the checkpoint":
        writer = importlib.import_module("crodobo.session.checkpoint_writer")
        writer.save_checkpoint = at_call(number, writer.save_checkpoint)
    elif point != "never":
        raise ValueError(point)


def live(arguments: list[str], cache: str, point: str, number: int, ready: Any) -> None:
    os.environ["CRODOBO_CACHE"] = cache
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    from crodobo.cli.main import main

    module = importlib.import_module("crodobo.inbox.adapt")
    take_all, begun = module.take_all, [ready.set]
    arm(module, begun, point, number)

    def announce_and_take_all(*arguments: Any) -> None:
        for each in begun:
            each()
        take_all(*arguments)

    module.take_all = announce_and_take_all
    sys.argv = ["crodobo", *arguments]
    main()


if __name__ == "killed_process":
    live(*globals()["job"])
