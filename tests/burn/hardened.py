"""A process that relaunches itself for strict burning and prints its own state as JSON. Run by test_hardened.py."""

import ctypes
import json
import os
import resource
import sys

from crodobo.burn.hardening import harden
from crodobo.burn.relaunch import relaunch

if __name__ == "__main__":
    relaunch()

import torch

from crodobo import CroDoBo, Source
from crodobo.burn.levels import memory_for
from crodobo.burn.proof import prove_at_start
from crodobo.core.query import Query
from crodobo.errors import Residue

libc = ctypes.CDLL(None)
for name in ("malloc", "realloc", "calloc", "reallocarray"):
    getattr(libc, name).restype = ctypes.c_void_p
SECRET = bytes(range(1, 251))
SIZES = ((64, 5000), (5000, 64), (5000, 4000), (1000, 100_000), (100_000, 60_000))


def block(size: int) -> ctypes.c_void_p:
    place = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(size)))
    ctypes.memmove(place, (SECRET * (size // 250 + 1))[:size], size)
    return place


def left(place: int, size: int) -> int:
    """How much of the secret is at an address. The first bytes of a free block belong to the allocator."""
    content = ctypes.string_at(place + 32, size - 32)
    return sum(content[start : start + 8] in SECRET for start in range(0, len(content) - 8, 8))


def freed(size: int) -> int:
    place = block(size)
    libc.free(place)
    return left(place.value or 0, size)


def moved(size: int, to: int) -> tuple[int, bool]:
    """How much realloc leaves at the old place, and whether it kept the content."""
    place = block(size)
    new = libc.realloc(place, ctypes.c_size_t(to))
    kept = min(size, to)
    whole = ctypes.string_at(new, kept) == (SECRET * (size // 250 + 1))[:kept]
    rest = left(place.value or 0, size) if new != place.value else left(new + to, size - to) if to < size else 0
    libc.free(ctypes.c_void_p(new))
    return rest, whole


class Hoarder(CroDoBo):
    """A method that keeps a copy of its query."""

    kept: torch.Tensor

    def step(self, query: Query):  # type: ignore[no-untyped-def]
        prediction = super().step(query)
        self.kept = query.pixels().clone()
        return prediction


def main() -> None:
    report: dict[str, object] = {
        "pid_is_the_same": os.environ["CRODOBO_LAUNCHED"] == str(os.getpid()),
        "arguments": sys.argv[1:],
        "freed": [freed(size) for size in (64, 1000, 5000, 100_000)],
        "moved": [moved(*sizes) for sizes in SIZES],
        "realloc_to_zero_frees": libc.realloc(block(100), ctypes.c_size_t(0)) is None,
        "overflow": libc.reallocarray(None, ctypes.c_size_t(2**62), ctypes.c_size_t(8)) is None,
    }
    hardening, memory = harden(), memory_for("strict")
    report |= {
        "allocator": hardening.allocator,
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "dumpable": libc.prctl(3, 0, 0, 0, 0),
        "others_may_open_it": os.stat("/proc/self/mem").st_uid == os.getuid() != 0,
    }
    source = Source(torch.rand(16, 1, 16, 16, generator=torch.Generator().manual_seed(0)), [0, 1] * 8)
    settings = {"learners": 1, "warmup": 1, "warmup_batch": 4, "threads": 1, "burn": "strict"}
    said: list[str] = []
    method = CroDoBo(source, **settings)
    before = {name: value.clone() for name, value in method.state().items()}
    proof = prove_at_start(method, memory, 8, said.append)
    after = method.state()
    report["proof"] = proof.as_numbers() if proof else None
    report["said"] = said
    report["changed"] = [name for name, value in before.items() if not torch.equal(value, after[name])]
    try:
        prove_at_start(Hoarder(source, **settings), memory, 8, said.append)
        report["hoarder"] = None
    except Residue as error:
        report["hoarder"] = str(error)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
