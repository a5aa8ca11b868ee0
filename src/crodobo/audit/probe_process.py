"""The probe process of the self-test: processes canaries like private images, then waits while it is searched.

Started as `python -m crodobo.audit.probe_process CASE SEED SOCKET`. It sends its memory, two open files, to its parent.
"""

import dataclasses
import json
import os
import signal
import socket
import sys
from functools import partial
from typing import Any, Literal

from crodobo.burn.hardening import harden
from crodobo.burn.process import ProcessMemory
from crodobo.burn.relaunch import relaunch

ProbeEnd = Literal["in order", "after an exception", "after Ctrl-C"]


@dataclasses.dataclass(frozen=True)
class ProbeCase:
    """What a probe process does: its network, how it burns, and how its last query ends."""

    backbone: str = "small"
    learners: int = 2
    parallel: bool = True
    burn: Literal["strict", "standard", "off"] = "strict"
    end: ProbeEnd = "in order"
    queries: int = 10
    query_size: int = 16
    image_size: int = 32
    channels: int = 3

    def __str__(self) -> str:
        engine = "in parallel" if self.parallel else "in sequence"
        learners = "1 learner" if self.learners == 1 else f"{self.learners} learners {engine}"
        return f"{self.backbone}, {learners}, burning {self.burn}, {self.queries} queries, {self.end}"


def main() -> None:
    # A process started in the background by a shell ignores SIGINT, and its children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    case, seed = ProbeCase(**json.loads(sys.argv[1])), sys.argv[2]
    if case.burn == "strict":
        relaunch()
    own = harden().memory if case.burn == "strict" else ProcessMemory.of("self")
    with socket.socket(fileno=int(sys.argv[3])) as parent:
        mean, std, error = process_canaries(case, seed)
        answer = json.dumps({"mean": mean, "std": std}).encode()
        socket.send_fds(parent, [answer], [own.maps, own.mem])
        parent.recv(1)  # returns when the search is over
    del error


def process_canaries(case: ProbeCase, seed: str) -> tuple[list[float], list[float], BaseException | None]:
    """Adapt to canaries. Returns the network's mean and std, and the last query's error, kept alive on purpose."""
    import torch

    from crodobo import CroDoBo, Source
    from crodobo.burn.levels import memory_for
    from crodobo.burn.proof import burn_canary, input_scaling

    shape = (case.channels, case.image_size, case.image_size)
    generator = torch.Generator().manual_seed(0)
    source = Source(torch.rand(64, *shape, generator=generator), [0, 1, 2, 3] * 16)
    settings: dict[str, Any] = {"backbone": case.backbone, "parallel": case.parallel, "burn": case.burn}
    # The published algorithm learns every query, so its step can be ended in the middle.
    settings["plain"] = case.end != "in order"
    method = CroDoBo(source, learners=case.learners, warmup=1, warmup_batch=8, **settings)
    memory, error = memory_for(case.burn), None
    for number in range(1, case.queries + 1):
        if number == case.queries and case.end != "in order":
            method.learners[-1].update = partial(fail, case.end)  # type: ignore[method-assign]
        try:
            burn_canary(method, memory, seed, case.query_size)
        except (RuntimeError, KeyboardInterrupt) as raised:
            error = raised
    if (error is None) != (case.end == "in order"):
        raise SystemExit("The last query did not end as planned.")
    return *input_scaling(method), error


def fail(end: ProbeEnd, *_: Any) -> bool:
    """Replaces a learner's update and ends the step in the middle, while gradients and activations exist."""
    if end == "after Ctrl-C":
        os.kill(os.getpid(), signal.SIGINT)
        return True
    raise RuntimeError("planned failure")


if __name__ == "__main__":
    main()
