"""Proof at start: a canary goes the whole way of a query, and then nothing of it may be left in memory."""

import secrets
from collections.abc import Callable

import torch
from torch import Tensor

from crodobo.burn.canary import Canary
from crodobo.burn.external_scan import scan_from_outside
from crodobo.burn.hardening import harden
from crodobo.burn.scan import Scan
from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.data.decode import decode
from crodobo.errors import BadSettings, Residue
from crodobo.methods import Method

SHOWN = 3  # finds that are named


def check_proving(every: int | None, burn: str) -> None:
    """Refuse searches between queries that could not but find something."""
    if every and burn != "strict":
        raise BadSettings("a search of the memory proves nothing unless burning is strict; leave --prove-every out")


def prove_at_start(method: Method, memory: Memory, size: int, note: Callable[[str], None]) -> Scan | None:
    """Under strict burning, prove that nothing is left of a query before a private one is read."""
    if method.settings.burn != "strict":
        return None
    hardening = harden()
    for text in hardening.uncovered:
        note(text)
    result = prove(method, memory, size)
    note(
        f"burn proof: of a test query nothing is left in {result.scanned / 2**20:.0f} MB of memory "
        f"({hardening.allocator}; searched in {result.seconds:.1f} s)"
    )
    return result


def prove(method: Method, memory: Memory, size: int = 64) -> Scan:
    """Prove that a method leaves nothing of a query in this process, which must be hardened.

    Raises `Residue`, with the places, if anything is left of a test query of that size.
    """
    result = try_out(method, memory, size)
    if result.finds:
        raise Residue(
            f"of a test query that was burned, {places(result)} are still in memory, so no private image was read; "
            "choose another --backbone, or --burn standard, which overwrites what it owns"
        )
    return result


def try_out(method: Method, memory: Memory, size: int) -> Scan:
    """Decode, augment, adapt to, predict and burn a query of canaries, then have all memory searched for them.

    The method is put back to where it was, its random numbers too.
    """
    seed = secrets.token_hex(16)
    without_a_trace(method, lambda: burn_canary(method, memory, seed, size))
    return search(method, seed)


def places(result: Scan) -> str:
    """What was found and where, as the subject of a sentence."""
    more = f" and {len(result.finds) - SHOWN} more" if len(result.finds) > SHOWN else ""
    return "; ".join(map(str, result.finds[:SHOWN])) + more


def burn_canary(method: Method, memory: Memory, seed: str, size: int) -> None:
    """One query of canaries, read as files are."""
    with canary_query(method.source.shape, memory, seed, size) as query:
        method.step(query)


def canary_query(shape: tuple[int, ...], memory: Memory, seed: str, size: int) -> Query:
    """A query of so many canaries, decoded one by one."""
    channels, height, width = shape
    content = Canary(seed).encoded((channels if channels == 1 else 3, height, width))
    batch = torch.empty((size, *shape), dtype=torch.uint8)
    for image in batch:
        pixels = torch.from_numpy(decode(content, (channels if channels == 1 else 3, height, width)))
        image.copy_(pixels[:channels] if channels <= 3 else pixels[:1])
        pixels.zero_()
    return Query(batch, memory)


def search(method: Method, seed: str) -> Scan:
    """Have the memory of this process searched for the canary of that seed by another process."""
    network, channels = method.learners[0].network, method.source.shape[0]
    mean, std = (values.flatten().expand(channels).tolist() for values in (network.mean, network.std))
    return scan_from_outside(harden().memory, seed, mean, std)


def without_a_trace(method: Method, work: Callable[[], None]) -> None:
    """Do something with a method that it does not remember."""
    before: dict[str, Tensor] = {name: value.clone() for name, value in method.state().items()}
    try:
        with torch.random.fork_rng(devices=[]):
            work()
    finally:
        method.load_state(before)
