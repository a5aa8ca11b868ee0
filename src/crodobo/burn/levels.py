"""How thoroughly queries are burned."""

from crodobo.burn.arena import Arena
from crodobo.burn.hardening import harden
from crodobo.config import Burn
from crodobo.core.memory import Memory, Unburned


def memory_for(level: Burn) -> Memory:
    """Where queries lie.

    strict
        In an arena, in a process that was hardened; `NotHardened` if any part of that is missing.
    standard
        On the heap. What queries own is overwritten; what torch made of them is freed and not overwritten.
    off
        On the heap, and nothing is overwritten.
    """
    if level == "strict":
        harden()
        return Arena()
    return Memory() if level == "standard" else Unburned()
