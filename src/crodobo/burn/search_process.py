"""The process that makes test images and searches this one for them.

A process that searched its own memory would find the needles themselves. So another one knows them, and searches.

It is forked, and runs no new program: Linux opens a new program to debuggers of the same user until it closes itself.
In that moment they could take over its open files, among them our memory. A forked process is closed like its parent
from the start. Fork it before the first private query is read; then it holds a copy of none.
"""

import contextlib
import itertools
import os
import signal
import warnings
from multiprocessing.connection import Connection, Pipe
from typing import Any, NoReturn, Self

import torch

from crodobo.burn.canary import Canary
from crodobo.burn.canary_files import canary_files, decoded_needles
from crodobo.burn.process import ProcessMemory
from crodobo.burn.scan import Scan, scan
from crodobo.errors import CrodoboError

Shape = tuple[int, int, int]


class SearchProcess:
    """Another process with access to the memory of this one, which must be closed to others already."""

    def __init__(self, memory: ProcessMemory) -> None:
        self._connection, other = Pipe()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads, which it does not use
                self._number = os.fork()
        except OSError as error:
            problem = f"The process that searches the memory cannot be started ({error.strerror})."
            raise CrodoboError(problem, "Make more memory available.") from None
        if not self._number:
            _work(other, memory)
        other.close()

    def files(self, seed: str) -> list[bytes]:
        """The canary of this seed in every image format and mode."""
        files: list[bytes] = self._ask("files", seed)
        return files

    def search(self, seed: str, shape: Shape, mean: list[float], std: list[float]) -> Scan:
        """Search this process for the canary of this seed, and for what its files are decoded to."""
        result: Scan = self._ask("search", seed, shape, mean, std)
        return result

    def close(self) -> None:
        """End the other process, and with it its access."""
        self._connection.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._number, signal.SIGKILL)
            os.waitpid(self._number, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, *request: Any) -> Any:
        try:
            self._connection.send(request)
            answer = self._connection.recv()
        except (EOFError, OSError):
            answer = CrodoboError("The process that searches the memory has ended.", "Start again.")
        if isinstance(answer, CrodoboError):
            raise answer
        return answer


def _work(connection: Connection, memory: ProcessMemory) -> NoReturn:
    """Answer requests until the other side is gone."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # they are for the parent, which may still need us to stop in order
        _close_files_except(connection.fileno(), memory.maps, memory.mem)
        torch.set_num_threads(1)  # a forked process has no other threads, and would wait for them
        while True:
            task, seed, *details = connection.recv()
            connection.send(canary_files(Canary(seed)) if task == "files" else _search(memory, seed, *details))
    except (EOFError, OSError):
        pass
    except BaseException as error:
        with contextlib.suppress(OSError):
            connection.send(CrodoboError(f"The process that searches the memory failed ({error!r})."))
    finally:
        os._exit(0)


def _search(memory: ProcessMemory, seed: str, shape: Shape, mean: list[float], std: list[float]) -> Scan:
    canary = Canary(seed)
    needles = canary.needles(len(mean), mean, std) + decoded_needles(canary_files(canary), shape)
    return scan(memory, needles)


def _close_files_except(*kept: int) -> None:
    """Locks, connections and logs of the parent must not stay open if it ends."""
    ends = sorted((-1, *kept, os.sysconf("SC_OPEN_MAX")))
    for before, after in itertools.pairwise(ends):
        os.closerange(before + 1, after)
