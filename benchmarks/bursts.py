"""The effect of a burst of one class on the rest of a stream on `glyphs`, with and without the guard (plain methods).

The stream is random, with queries of a single class inserted after the first 25. The samples before and after the burst
are the same with and without it.

    python benchmarks/bursts.py [--methods crodobo,tent] [--seeds 0,1,2] [--length 20] [--bursts 1]
"""

import argparse
import time

import torch
from torch import Generator, Tensor

from crodobo.config import MethodSettings
from crodobo.core.metrics import QueryRecord
from crodobo.core.query import Query
from crodobo.data import Benchmark, load_benchmark
from crodobo.evaluate.protocols import online
from crodobo.methods import Method, get_method
from crodobo.session.warm_start import warm_learners

QUERY = 64
BEFORE = 25  # queries before each burst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="crodobo", type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--length", default=20, type=int, help="queries in a burst")
    parser.add_argument("--bursts", default=1, type=int)
    arguments = parser.parse_args()

    benchmark = load_benchmark("glyphs")
    for name in arguments.methods:
        for seed in arguments.seeds:
            for bursts, guard in ((0, False), (arguments.bursts, False), (arguments.bursts, True)):
                started = time.perf_counter()
                order, in_burst = with_bursts(benchmark, seed, bursts, arguments.length)
                rows = stream(make(benchmark, name, seed, guard), benchmark, order)
                first = [row for row in rows if not in_burst[row.query - 1]][BEFORE:]
                inside = [row for row in rows if in_burst[row.query - 1]]
                unlearned = sum(row.predicted_only is not None for row in rows)
                restored = sum(row.restored for row in rows)
                print(
                    f"{name} seed {seed}, {bursts} bursts, guard {'on' if guard else 'off'}: "
                    f"in bursts {share(inside)}, between and after {share(first)}; "
                    f"predicted only {unlearned}, restored {restored} ({time.perf_counter() - started:.0f} s)",
                    flush=True,
                )


def with_bursts(benchmark: Benchmark, seed: int, bursts: int, length: int) -> tuple[Tensor, list[bool]]:
    """The order of the samples, and for each query whether it belongs to a burst. A burst may repeat samples."""
    generator = Generator().manual_seed(seed + 77)
    rest, parts, in_burst = benchmark.order(seed), [], []
    for number in range(bursts):
        own = (benchmark.labels == (3 + number) % 10).nonzero().flatten()
        parts += [rest[: BEFORE * QUERY], own[torch.randint(len(own), (length * QUERY,), generator=generator)]]
        in_burst += [False] * BEFORE + [True] * length
        rest = rest[BEFORE * QUERY :]
    return torch.cat([*parts, rest]), in_burst + [False] * (len(rest) // QUERY + 1)


def make(benchmark: Benchmark, name: str, seed: int, guard: bool) -> Method:
    """A method after its warm-up. With one thread for each learner, figures do not depend on the number of cores."""
    kind = get_method(name)
    settings: MethodSettings = kind.Settings.of(
        seed=seed, guard=guard, plain=True, threads=1, burn="off" if kind.keeps_target else "standard"
    )
    learners, _ = warm_learners(benchmark, settings)
    return kind(benchmark.source, augment=benchmark.augment, **dict(settings) | {"learners": learners})


def stream(method: Method, benchmark: Benchmark, order: Tensor) -> list[QueryRecord]:
    """The records of all queries of the stream."""
    chosen = order.split(QUERY)
    method.expect(len(chosen))
    return online(method, ((Query(benchmark.images[each].clone()), benchmark.labels[each]) for each in chosen)).rows


def share(rows: list[QueryRecord]) -> str:
    """The accuracy over queries, in percent."""
    samples = sum(row.samples for row in rows)
    return f"{100 * sum(row.correct for row in rows) / samples:.1f}" if samples else "–"


if __name__ == "__main__":
    main()
