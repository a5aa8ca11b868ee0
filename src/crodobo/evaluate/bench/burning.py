"""What burning costs: the time of a query under each level, against that without burning.

Strict burning needs a process that was started for it. So each level has a process of its own, and they take turns:
each round times a query in every one of them while the others wait, and a ratio is the median of the rounds' ratios.
"""

import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, get_args

from crodobo.burn.relaunch import relaunch
from crodobo.config import Burn
from crodobo.errors import CrodoboError

WARM = 2  # queries before the first that is timed


def measure_burning(name: str, *, rounds: int, note: Callable[[str], None]) -> dict[str, Any]:
    """Seconds a query by level (medians), and what each level takes of the time without burning."""
    levels = get_args(Burn)
    with contextlib.ExitStack() as processes:
        turns = {level: processes.enter_context(_started(level, name)) for level in levels}
        note(f"{name}: burning, {rounds} rounds")
        seconds: dict[str, list[float]] = {level: [] for level in levels}
        for number in range(WARM + rounds):
            for level, turn in turns.items():
                took = turn()
                if number >= WARM:
                    seconds[level].append(took)
    ratios = {
        level: statistics.median(ours / off for ours, off in zip(seconds[level], seconds["off"], strict=True))
        for level in levels
    }
    medians = {level: statistics.median(times) for level, times in seconds.items()}
    return {"case": name, "rounds": rounds, "seconds_per_query": medians, "ratio_to_off": ratios}


@contextlib.contextmanager
def _started(level: Burn, name: str) -> Any:
    """A process of this level; what it yields has it take one query, and gives the seconds."""
    command = [sys.executable, "-m", __name__, level, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        tell, hear = process.stdin, process.stdout

        def turn() -> float:
            tell.write("\n")
            tell.flush()
            if not (answer := hear.readline()):
                raise CrodoboError(f"the process with burning {level} has failed; it has said why above")
            return float(json.loads(answer))

        try:
            yield turn
        finally:
            process.kill()


def main() -> None:
    """The process of a level: a query for each line that comes, its seconds on a line that goes."""
    level, name = sys.argv[1], sys.argv[2]
    if level == "strict":
        relaunch()

    import torch

    from crodobo.burn.levels import memory_for
    from crodobo.core.query import Query
    from crodobo.evaluate.bench.engine import CASES, make_method

    case = CASES[name]
    method, memory = make_method(case), memory_for(level)  # type: ignore[arg-type]
    images = torch.randint(256, (case.query, *case.shape), dtype=torch.uint8)
    for _ in sys.stdin:
        started = time.perf_counter()
        with Query(images.clone(), memory) as query:
            method.step(query)
        print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
