"""A process for the self-test: it meets canaries as private images are met, and then holds still to be searched.

Started as `python -m crodobo.audit.probe_process CASE SOCKET`. It sends its memory, as two open files, to its parent.
"""

import dataclasses
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Literal

from crodobo.burn.hardening import harden
from crodobo.burn.process import ProcessMemory
from crodobo.burn.relaunch import relaunch

End = Literal["in order", "after an exception", "after Ctrl-C"]


@dataclasses.dataclass(frozen=True)
class Case:
    """What the process does: how it burns, with what network, and how its last query ends."""

    backbone: str = "small"
    learners: int = 2
    parallel: bool = True
    burn: Literal["strict", "standard", "off"] = "strict"
    end: End = "in order"
    queries: int = 10
    query_size: int = 16
    image_size: int = 32
    channels: int = 3

    def __str__(self) -> str:
        way = "" if self.learners == 1 else " in parallel" if self.parallel else " in sequence"
        learners = f"{self.learners} learner{'s' if self.learners > 1 else ''}{way}"
        return f"{self.backbone}, {learners}, burning {self.burn}, {self.queries} queries, {self.end}"


def main() -> None:
    case, seed = Case(**json.loads(sys.argv[1])), sys.argv[2]
    if case.burn == "strict":
        relaunch()
    own = harden().memory if case.burn == "strict" else ProcessMemory.of("self")
    with socket.socket(fileno=int(sys.argv[3])) as starter:
        mean, std, error = meet_canaries(case, seed)
        answer = json.dumps({"mean": mean, "std": std}).encode()
        socket.send_fds(starter, [answer], [own.maps, own.mem])
        starter.recv(1)  # until it was searched
    del error


def meet_canaries(case: Case, seed: str) -> tuple[list[float], list[float], BaseException | None]:
    """Adapt to canaries; how the network scales its input, and the error of the last query, kept on purpose."""
    import torch

    from crodobo import CroDoBo, Source
    from crodobo.burn.levels import memory_for
    from crodobo.burn.proof import burn_canary

    shape = (case.channels, case.image_size, case.image_size)
    generator = torch.Generator().manual_seed(0)
    source = Source(torch.rand(64, *shape, generator=generator), [0, 1, 2, 3] * 16)
    settings: dict[str, Any] = {"backbone": case.backbone, "parallel": case.parallel, "burn": case.burn}
    method = CroDoBo(source, learners=case.learners, warmup=1, warmup_batch=8, **settings)
    memory, error = memory_for(case.burn), None
    for number in range(1, case.queries + 1):
        if number == case.queries and case.end != "in order":
            method.learners[-1].update = breaking_off(case.end)  # type: ignore[method-assign]
        try:
            burn_canary(method, memory, seed, case.query_size)
        except (RuntimeError, KeyboardInterrupt) as broken:
            error = broken
    if (error is None) != (case.end == "in order"):
        raise SystemExit("the last query did not end as it was to")
    network = method.learners[0].network
    mean, std = (values.flatten().expand(case.channels).tolist() for values in (network.mean, network.std))
    return mean, std, error


def breaking_off(end: End) -> Callable[..., bool]:
    """In place of an update: what ends the step in its middle, when gradients and activations are there."""

    def update(*arguments: Any) -> bool:
        if end == "after Ctrl-C":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # behind `&` a shell makes commands ignore it
            os.kill(os.getpid(), signal.SIGINT)
            return True
        raise RuntimeError("broken off")

    return update


if __name__ == "__main__":
    main()
