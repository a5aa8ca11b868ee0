"""What a point costs: online accuracy against the time of a query, for numbers of learners and steps, and for views.

Every cell is CroDoBo on a random stream, with its own warm start. Times are processor seconds per query (all threads),
which other processes on the machine hardly change. Each finished cell is a line of `cost/cells.jsonl` in the output
folder, from which `cost/table.md` and `cost/cost.png` are made; the same command continues after a stop.

    python benchmarks/cost.py --data FOLDER --weights mobilenet_v2.pth [--pairs glyphs,photo-art] [--jobs 2]
    python benchmarks/cost.py --report-only

"views off" learns the source as it is and predicts each image once.
"""

import argparse
import json
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from crodobo.evaluate.protocols import one_pass, online
from crodobo.methods import CroDoBo
from streams import FASHION, append, end_with_parent
from streams_cells import PAIRS, Places, load_stream

LEARNERS, STEPS = (1, 2, 4), (1, 2, 3, 5)
NO_VIEWS = {"source_views": "plain", "predict_views": 1}
TITLES = {True: "on", False: "off"}


class Cell(NamedTuple):
    """One run."""

    pair: str
    learners: int
    steps: int
    views: bool
    seed: int


def all_cells(pairs: list[str], seeds: list[int]) -> Iterator[Cell]:
    """All cells. Views are turned off for two learners only."""
    for seed in seeds:
        for pair in pairs:
            for learners in LEARNERS:
                for steps in STEPS:
                    yield Cell(pair, learners, steps, True, seed)
                    if learners == 2:
                        yield Cell(pair, learners, steps, False, seed)


def measure(cell: Cell, places: Places) -> dict[str, Any]:
    """Run a cell in one thread."""
    torch.set_num_threads(1)
    pair = PAIRS[cell.pair]
    benchmark = load_stream(cell.pair, places, pair.samples)
    options: dict[str, Any] = pair.options | {"seed": cell.seed, "threads": 1, "parallel": False}
    if pair.needs_weights:
        options["weights"] = places.weights
    options |= {"learners": cell.learners, "steps": cell.steps} | ({} if cell.views else NO_VIEWS)
    method = CroDoBo(benchmark.source, augment=benchmark.augment, **options)
    started = time.process_time()
    record = online(method, benchmark.stream(64, cell.seed))
    seconds = (time.process_time() - started) / record.queries
    final = one_pass(method, benchmark.images, benchmark.labels, 64).accuracy
    return cell._asdict() | {"online": record.online_accuracy, "one_pass": final, "seconds": seconds}


def read_cells(file: Path) -> dict[Cell, dict[str, Any]]:
    """The finished cells. A line that a kill left unfinished is ignored."""
    found: dict[Cell, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
            found[Cell(**{name: record[name] for name in Cell._fields})] = record
        except (ValueError, KeyError):
            continue
    return found


def write_report(cells: dict[Cell, dict[str, Any]], folder: Path) -> None:
    """The table and the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups: dict[Cell, list[dict[str, Any]]] = defaultdict(list)
    for cell, record in cells.items():
        groups[cell._replace(seed=-1)].append(record)
    pairs = [name for name in PAIRS if any(cell.pair == name for cell in cells)]
    seeds = sorted({cell.seed for cell in cells})
    lines = [
        f"**Online / one-pass accuracy (%) and processor seconds per query, seeds {', '.join(map(str, seeds))}**",
        "",
        "| pair | learners | views | "
        + " | ".join(f"{steps} step{'s' if steps > 1 else ''}" for steps in STEPS)
        + " |",
        "| --- | ---: | --- | " + " | ".join("---:" for _ in STEPS) + " |",
    ]
    figure, axes = plt.subplots(1, len(pairs), figsize=(5.2 * len(pairs), 3.8), squeeze=False, layout="constrained")
    for axis, pair in zip(axes[0], pairs, strict=True):
        for learners in LEARNERS:
            for views in (True, False):
                row = [groups.get(Cell(pair, learners, steps, views, -1)) for steps in STEPS]
                if not any(row):
                    continue
                means = [mean_of(found) if found else None for found in row]
                shown = [
                    f"{a:.1f} / {b:.1f}, {s:.2f} s" if found else "–"
                    for found in means
                    for a, b, s in [found or (0, 0, 0)]
                ]
                lines.append(f"| {PAIRS[pair].title} | {learners} | {TITLES[views]} | " + " | ".join(shown) + " |")
                points = [(found[2], found[0]) for found in means if found]
                label = f"{learners} learner{'s' if learners > 1 else ''}" + ("" if views else ", views off")
                axis.plot(*zip(*points, strict=True), marker="o", linestyle="-" if views else "--", label=label)
        axis.set(title=f"{PAIRS[pair].title}: 1, 2, 3, 5 steps", xlabel="processor seconds per query")
        axis.set_ylabel("online accuracy (%)")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    figure.savefig(folder / "cost.png", dpi=150)
    (folder / "table.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def mean_of(records: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Online and one-pass accuracy in percent, and seconds."""
    online_, final, seconds = ([record[name] for record in records] for name in ("online", "one_pass", "seconds"))
    return 100 * statistics.fmean(online_), 100 * statistics.fmean(final), statistics.fmean(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default="glyphs,photo-art", help="names separated by commas")
    parser.add_argument("--seeds", default="0", help="0,1")
    parser.add_argument("--data", type=Path, metavar="FOLDER")
    parser.add_argument("--fashion", default=FASHION, type=Path, metavar="FOLDER")
    parser.add_argument("--weights", type=Path, metavar="FILE")
    parser.add_argument("--output", default=Path("runs"), type=Path, metavar="FOLDER")
    parser.add_argument("--jobs", default=1, type=int, help="processes at a time")
    parser.add_argument("--report-only", action="store_true")
    arguments = parser.parse_args()
    places = Places(arguments.data, arguments.fashion, arguments.weights)
    folder = arguments.output / "cost"
    folder.mkdir(parents=True, exist_ok=True)
    file, pairs = folder / "cells.jsonl", arguments.pairs.split(",")
    if not arguments.report_only:
        for pair in pairs:
            if pair not in PAIRS:
                parser.error(f"There is no pair {pair!r}. Choose from {', '.join(PAIRS)}.")
            if missing := PAIRS[pair].missing(places):
                parser.error(f"{pair} needs {' and '.join(missing)}.")
        finished = read_cells(file)
        waiting = [
            cell
            for cell in all_cells(pairs, [int(seed) for seed in arguments.seeds.split(",")])
            if cell not in finished
        ]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(arguments.jobs, context, initializer=end_with_parent) as pool:
            futures = [pool.submit(measure, cell, places) for cell in waiting]
            for number, future in enumerate(as_completed(futures), 1):
                record = future.result()
                append(file, record)
                print(f"{number}/{len(waiting)} {json.dumps(record)}", flush=True)
    if cells := read_cells(file):
        write_report(cells, folder)
        print(f"{len(cells)} cells are in {folder / 'table.md'} and {folder / 'cost.png'}.")


if __name__ == "__main__":
    main()
