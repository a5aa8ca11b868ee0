"""Levels of burning: strict, standard, off."""

from crodobo.burn.arena import Arena
from crodobo.burn.hardening import harden
from crodobo.config import Burn
from crodobo.core.memory import Memory, Unburned

BURNED = {
    "strict": "every query was overwritten after its prediction, in a process that overwrites the memory it frees",
    "standard": "every query was overwritten after its prediction",
    "off": "nothing was overwritten: burning was off",
}


def memory_for(level: Burn) -> Memory:
    """The memory that queries are held in.

    strict
        An arena in a hardened process. Raises `NotHardened` if any part of that is missing.
    standard
        The heap. Tensors of the query are overwritten; tensors that torch derives from them are only freed.
    off
        The heap. Nothing is overwritten.
    """
    if level == "strict":
        harden()
        return Arena()
    return Memory() if level == "standard" else Unburned()
