"""The full accuracy bars on `glyphs`: every method with the same warm starts and streams.

Each seed warms up four learners once. `single` is scored from each of the four, and CroDoBo uses the first two or all
four, so that a lucky start helps all methods. Prints a table, writes runs/accuracy.json, and fails if a bar is missed.

    python benchmarks/accuracy.py [--seeds 0,1,2] [--queries N]
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from torch import Tensor

from crodobo.config import MethodSettings
from crodobo.data import Benchmark, load_benchmark
from crodobo.engine import make_engine
from crodobo.evaluate.protocols import one_pass, online
from crodobo.methods import get_method
from crodobo.nn.learners import make_learners, warm_up

STARTS = 4
QUERY = 64
State = dict[str, Tensor]
Score = tuple[float, float]
VARIANTS: dict[str, tuple[str, list[list[int]]]] = {
    "source-only": ("source-only", [[0], [1], [2], [3]]),
    "single": ("single", [[0], [1], [2], [3]]),
    "crodobo K=2": ("crodobo", [[0, 1]]),
    "crodobo K=4": ("crodobo", [[0, 1, 2, 3]]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2", type=lambda text: [int(part) for part in text.split(",")])
    parser.add_argument("--queries", type=int, help="shorten the stream (the bars are for the whole stream)")
    arguments = parser.parse_args()

    benchmark = load_benchmark("glyphs")
    scores: dict[str, list[list[Score]]] = {name: [] for name in VARIANTS}
    for seed in arguments.seeds:
        started = time.perf_counter()
        starts = warm_starts(benchmark, seed)
        print(f"seed {seed}: {STARTS} warm starts in {time.perf_counter() - started:.0f} s", flush=True)
        for name, (method, choices) in VARIANTS.items():
            found = [score(benchmark, method, seed, starts, chosen, arguments.queries) for chosen in choices]
            scores[name].append(found)
            shown = ", ".join(f"{100 * online:.2f}/{100 * final:.2f}" for online, final in found)
            print(f"  {name:12} online/one-pass {shown}", flush=True)

    means = {name: means_of(found) for name, found in scores.items()}
    print(f"\n{'':12} {'online':>15} {'one-pass':>15}   (%, mean ± sd over seeds {arguments.seeds})")
    for name, (on, on_sd, final, final_sd) in means.items():
        print(f"{name:12} {100 * on:8.2f} ± {100 * on_sd:4.2f} {100 * final:8.2f} ± {100 * final_sd:4.2f}")
    path = Path("runs/accuracy.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"seeds": arguments.seeds, "queries": arguments.queries, "scores": scores}, indent=2))
    sys.exit(report_bars(means))


def warm_starts(benchmark: Benchmark, seed: int) -> list[State]:
    """The states of the learners after their warm-up."""
    settings = MethodSettings.of(seed=seed, plain=True)
    learners = make_learners(benchmark.source, STARTS, seed, settings)
    warm_up(learners, make_engine(STARTS), benchmark.source, benchmark.augment)
    return [{name: value.clone() for name, value in learner.state().items()} for learner in learners]


def score(
    benchmark: Benchmark, name: str, seed: int, starts: list[State], chosen: list[int], queries: int | None
) -> Score:
    """Online and one-pass accuracy of a method that starts from the chosen warm starts."""
    kind = get_method(name)
    settings = kind.Settings.of(learners=len(chosen), seed=seed, plain=True)
    learners = make_learners(benchmark.source, len(chosen), seed, settings)
    for learner, start in zip(learners, chosen, strict=True):
        learner.load_state(starts[start])
    method = kind(benchmark.source, learners=learners, augment=benchmark.augment, seed=seed, plain=True)
    record = online(method, benchmark.stream(QUERY, seed, queries=queries))
    streamed = benchmark.order(seed)[: len(record.predicted)]
    final = one_pass(method, benchmark.images[streamed], benchmark.labels[streamed], QUERY)
    return record.online_accuracy, final.accuracy


def means_of(found: list[list[Score]]) -> tuple[float, float, float, float]:
    """Mean and deviation over the seeds. The value of a seed is the mean over its warm starts."""
    by_seed = [[statistics.fmean(column) for column in zip(*scores, strict=True)] for scores in found]
    columns = list(zip(*by_seed, strict=True))
    deviations = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
    return statistics.fmean(columns[0]), deviations[0], statistics.fmean(columns[1]), deviations[1]


def report_bars(means: dict[str, tuple[float, float, float, float]]) -> int:
    """Print whether each bar is reached, and return the number of missed bars."""
    two, four, single, source = (means[n] for n in ("crodobo K=2", "crodobo K=4", "single", "source-only"))
    bars = {
        f"K=2 online {two[0]:.4f} ≥ 0.88": two[0] >= 0.88,
        f"K=2 one-pass {two[2]:.4f} ≥ 0.93": two[2] >= 0.93,
        f"source-only {100 * (two[0] - source[0]):.1f} points lower online (≥ 12)": two[0] - source[0] >= 0.12,
        f"K=2 above single by {100 * (two[0] - single[0]):.2f} points online": two[0] > single[0],
        f"K=4 above K=2 by {100 * (four[0] - two[0]):.2f} points online": four[0] > two[0],
    }
    print()
    for text, reached in bars.items():
        print(f"{'reached' if reached else 'MISSED '}  {text}")
    return sum(not reached for reached in bars.values())


if __name__ == "__main__":
    main()
