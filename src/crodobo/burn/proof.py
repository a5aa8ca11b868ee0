"""The burn proof: process a query of test images, burn it, and check that nothing of it is left in memory."""

import contextlib
import secrets
from collections.abc import Callable

import torch

from crodobo.burn.canary import Canary
from crodobo.burn.hardening import harden
from crodobo.burn.scan import Scan
from crodobo.burn.search_process import SearchProcess
from crodobo.core.memory import Memory
from crodobo.core.query import Query
from crodobo.data.decode import decode
from crodobo.errors import BadImage, BadSettings, Residue
from crodobo.methods import Method

SHOWN = 3  # finds that a message names


def check_proving(every: int | None, burn: str) -> None:
    """Refuse repeated proofs unless burning is strict: any other level leaves traces."""
    if every and burn != "strict":
        problem = "Searching the memory between queries proves something only under strict burning."
        raise BadSettings(problem, "Turn the searches off, or choose strict burning.", settings=("prove_every", "burn"))


def prove_at_start(method: Method, memory: Memory, size: int, note: Callable[[str], None]) -> Scan | None:
    """Under strict burning, prove that a query leaves nothing before a private one is read."""
    if method.settings.burn != "strict":
        return None
    hardening = harden()
    for gap in hardening.uncovered:
        note(gap)
    result = prove(method, memory, size)
    note(
        f"Burn proof: nothing of a test query is left in {result.scanned / 2**20:.0f} MB of memory "
        f"({hardening.allocator}, searched in {result.seconds:.1f} s)."
    )
    return result


def prove(method: Method, memory: Memory, size: int = 64) -> Scan:
    """Prove that a method leaves nothing of a query in this process, which must be hardened.

    Raises `Residue` with the places if anything is left of a test query of that size.
    """
    with SearchProcess(harden().memory) as searching:
        result = try_out(method, memory, size, searching)
    if result.finds:
        raise Residue(
            f"A test query was burned, but traces are still in memory: {places(result)}. No private image was read.",
            "Choose another backbone, or standard burning.",
            settings=("backbone", "burn"),
        )
    return result


def try_out(method: Method, memory: Memory, size: int, searching: SearchProcess) -> Scan:
    """Decode, augment, learn, predict and burn a query of canaries, then search all memory for them.

    Canaries in all other image formats are decoded and burned too. Afterwards the method is as it was before, including
    its random state.
    """
    seed, snapshot = secrets.token_hex(16), method.snapshot()
    try:
        with torch.random.fork_rng(devices=[]):
            burn_canary(method, memory, seed, size)
    finally:
        method.restore(snapshot)
    del snapshot
    shape = decoded_shape(method.source.shape)
    burn_files(searching.files(seed), shape, memory)
    return searching.search(seed, shape, *input_scaling(method))


def burn_files(files: list[bytes], shape: tuple[int, int, int], memory: Memory) -> None:
    """Decode image files and burn their pixels."""
    while files:
        with contextlib.suppress(BadImage):  # a format that is not decoded here leaves nothing
            memory.burn([memory.take(torch.from_numpy(decode(files.pop(), shape)))])


def input_scaling(method: Method) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel with which the network normalises images."""
    network, channels = method.learners[0].network, method.source.shape[0]
    mean, std = (values.flatten().expand(channels).tolist() for values in (network.mean, network.std))
    return mean, std


def places(result: Scan) -> str:
    """The first finds and where they are, for a message."""
    more = f" and {len(result.finds) - SHOWN} more" if len(result.finds) > SHOWN else ""
    return "; ".join(map(str, result.finds[:SHOWN])) + more


def burn_canary(method: Method, memory: Memory, seed: str, size: int) -> None:
    """Process one query of canaries, decoded like image files."""
    with canary_query(method.source.shape, memory, seed, size) as query:
        method.step(query)


def canary_query(shape: tuple[int, ...], memory: Memory, seed: str, size: int) -> Query:
    """A query of canaries, decoded one by one. Its variables are gone when the query is processed."""
    channels, picture = shape[0], decoded_shape(shape)
    content = Canary(seed).encoded(picture)
    batch = torch.empty((size, *shape), dtype=torch.uint8)
    for image in batch:
        pixels = torch.from_numpy(decode(content, picture))
        image.copy_(pixels[:channels] if channels <= 3 else pixels[:1])
        pixels.zero_()
    return Query(batch, memory)


def decoded_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """The shape that image files are decoded to for samples of a shape: grey or colour."""
    channels, height, width = shape
    return 1 if channels == 1 else 3, height, width
