"""The arena: its protections, its allocator, and that it overwrites what it held."""

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crodobo.burn.arena import Arena
from crodobo.core.memory import Unburned
from crodobo.core.query import Query


def flags_at(address: int) -> set[str]:
    """The kernel's flags for the memory at an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            inside = start <= address < end
        elif inside and line.startswith("VmFlags:"):
            return set(line.split()[1:])
    raise AssertionError("no such memory")


def test_memory_is_locked_not_dumped_and_wiped_on_fork() -> None:
    held = Arena().take(torch.rand(100))
    assert {"lo", "dd", "wf"} <= flags_at(held.data_ptr())


def test_the_arena_is_empty_in_a_forked_process() -> None:
    code = (
        "import os, torch\n"
        "from crodobo.burn.arena import Arena\n"
        "held = Arena().take(torch.ones(1000))\n"
        "if not (child := os.fork()): os._exit(int(held.sum()) != 0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and held.sum() == 1000"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_error_says_that_memory_cannot_be_locked() -> None:
    code = (
        "import os, resource\n"
        "from crodobo.burn.arena import Arena\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (2**16, 2**16))\n"
        "os.getuid() or os.setuid(65534)\n"  # root has no limit
        "Arena()"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    sentence = failed.stderr.strip().splitlines()[-1]
    assert "NotHardened: 1 MB for queries cannot be locked in memory" in sentence
    assert "ulimit -l" in sentence


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_take_copies_a_tensor_and_overwrites_the_original(dtype: torch.dtype, layout: torch.memory_format) -> None:
    tensor = (torch.rand(2, 3, 5, 7) * 255).to(dtype).contiguous(memory_format=layout)
    before = tensor.clone()
    held = Arena().take(tensor)
    assert torch.equal(held, before)
    assert (held.dtype, held.stride()) == (dtype, before.stride())
    assert not tensor.any()


def test_a_view_into_the_arena_is_not_copied() -> None:
    arena = Arena()
    held = arena.take(torch.rand(4, 5))
    view = held[1:3]
    assert arena.take(view) is view
    assert view.any()


def test_a_tensor_of_an_autograd_graph_is_not_copied() -> None:
    weight = torch.ones(3, requires_grad=True)
    product = weight * 2
    assert Arena().take(product) is product


def test_memory_of_burned_tensors_is_reused() -> None:
    arena = Arena()
    for _ in range(50):
        tensors = [arena.take(torch.rand(1000 + 100 * number)) for number in range(10)]
        arena.burn(tensors[::2])
        arena.burn(tensors[1::2])
    assert arena.size == 2**20


@given(st.lists(st.tuples(st.integers(1, 5000), st.booleans()), max_size=60))
def test_tensors_never_overlap_and_burned_memory_is_zero(requests: list[tuple[int, bool]]) -> None:
    arena = Arena()
    alive: list[tuple[torch.Tensor, int]] = []
    for value, (size, burns) in enumerate(requests, start=1):
        alive.append((arena.take(torch.full((size,), value)), value))
        if burns:
            tensor, _ = alive.pop(len(alive) // 2)
            arena.burn([tensor])
            content = (ctypes.c_char * (tensor.numel() * 8)).from_address(tensor.data_ptr())
            assert not any(content.raw)
        assert all(bool((tensor == value).all()) for tensor, value in alive)


def test_a_query_in_the_arena_is_erased_with_its_views() -> None:
    arena, images = Arena(), np.full((2, 1, 8, 8), 200, np.uint8)
    query = Query(images, arena)
    assert not images.any()
    with query:
        pixels = query.pixels()
        derived = query.own(pixels + 0.125)
        assert float(derived.max()) == pytest.approx(200 / 255 + 0.125)
    assert not pixels.any()
    assert not derived.any()
    assert query.wiped == 128 + 2 * 512


def test_owning_the_image_itself_keeps_it() -> None:
    with Query(torch.full((1, 1, 8, 8), 51, dtype=torch.uint8), Arena()) as query:
        pixels = query.pixels()
        assert query.own(pixels) is pixels
        assert float(pixels.mean()) == pytest.approx(0.2)


def test_without_burning_nothing_is_overwritten() -> None:
    images = torch.ones(2, 1, 8, 8)
    query = Query(images, Unburned())
    with query:
        pass
    assert query.wiped == 0
    assert images.all()


def test_deleting_the_arena_unmaps_its_memory() -> None:
    arena = Arena()
    held = arena.take(torch.ones(10**6))
    address = held.data_ptr()
    del arena, held
    with pytest.raises(AssertionError, match="no such memory"):
        flags_at(address)


def test_unused_memory_is_returned_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    smallest = 2**16  # far less than the 8 MB that a user may usually lock
    monkeypatch.setattr("crodobo.burn.arena.SMALLEST", smallest)
    monkeypatch.setattr("crodobo.burn.arena.SPARE", 4 * smallest)
    arena = Arena()
    held = [arena.take(torch.ones(2**15)) for _ in range(8)]
    assert arena.size == 17 * smallest
    arena.burn(held[:4])
    assert arena.size == 11 * smallest
    arena.burn(held[4:])
    assert arena.size <= 5 * smallest
    assert not any(tensor.any() for tensor in held)
