"""The cost of burning: the time of a query at each level, against no burning.

Strict burning needs a process that was started for it, so each level has a process of its own. They take turns: each
round times one query in every process while the others wait, and a ratio is the median of the ratios of the rounds.

    python benchmarks/burning.py [--case glyphs] [--rounds N] [--out runs/burning.json]
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, get_args

from crodobo.burn.relaunch import relaunch
from crodobo.config import Burn

WARM_UP = 2  # queries before the first that is timed
Timer = Callable[[], float]


def main() -> None:
    from speed import CASES, add_case_options, write_and_print

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_case_options(parser, "runs/burning.json")
    arguments = parser.parse_args()
    costs = [measure(name, arguments.rounds or CASES[name].rounds) for name in arguments.case or CASES]
    rows = [
        [f"burning {level}"]
        + [f"{cost['seconds_per_query'][level]:.3f} s, {cost['ratio_to_off'][level]:.2f} ×" for cost in costs]
        for level in get_args(Burn)
    ]
    write_and_print(arguments.out, costs, ["", *(cost["case"] for cost in costs)], rows)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median seconds for a query at each level, and the ratio of each level to no burning."""
    from speed import note

    levels = get_args(Burn)
    with contextlib.ExitStack() as processes:
        timers = {level: processes.enter_context(started(level, name)) for level in levels}
        note(f"{name}: burning, {rounds} rounds")
        seconds: dict[str, list[float]] = {level: [] for level in levels}
        for number in range(WARM_UP + rounds):
            for level, time_query in timers.items():
                duration = time_query()
                if number >= WARM_UP:
                    seconds[level].append(duration)
    ratios = {
        level: statistics.median(ours / off for ours, off in zip(seconds[level], seconds["off"], strict=True))
        for level in levels
    }
    medians = {level: statistics.median(times) for level, times in seconds.items()}
    return {"case": name, "rounds": rounds, "seconds_per_query": medians, "ratio_to_off": ratios}


@contextlib.contextmanager
def started(level: Burn, name: str) -> Iterator[Timer]:
    """Start a process of this level. The function makes it process one query, and returns the seconds."""
    command = [sys.executable, __file__, "--process", level, name]
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} | os.environ
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin
        assert process.stdout
        requests, answers = process.stdin, process.stdout

        def time_query() -> float:
            requests.write("\n")
            requests.flush()
            if not (answer := answers.readline()):
                sys.exit(f"The process with burning {level} failed. Its error is above.")
            return float(json.loads(answer))

        try:
            yield time_query
        finally:
            process.kill()


def process_queries(level: Burn, name: str) -> None:
    """The process of a level: process one query for each line of input, and print its seconds."""
    if level == "strict":
        relaunch()

    import torch

    from crodobo.burn.levels import memory_for
    from crodobo.core.query import Query
    from speed import CASES, make_method

    case = CASES[name]
    method, memory = make_method(case), memory_for(level)
    images = torch.randint(256, (case.query, *case.shape), dtype=torch.uint8)
    for _ in sys.stdin:
        start = time.perf_counter()
        with Query(images.clone(), memory) as query:
            method.step(query)
        print(json.dumps(time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--process"]:
        process_queries(*sys.argv[2:])  # type: ignore[arg-type]
    else:
        main()
