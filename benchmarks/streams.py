"""The matrix of streams: pairs of domains × orders × query sizes × methods × seeds, each scored online.

Answers one question: is there a stream on which CroDoBo is worse than not adapting? Each finished cell is a line of
`streams/cells.jsonl` in the output folder, from which `streams/table.md` and `streams/streams.png` are made. The same
command continues after a stop and skips finished cells; to measure a cell again, delete its line.

    python benchmarks/streams.py --data FOLDER --weights mobilenet_v2.pth [--jobs 2] [--output runs]
    python benchmarks/streams.py --pairs glyphs --sizes 64 --seeds 0 --methods no-adaptation,crodobo
    python benchmarks/streams.py --report-only

FOLDER has digits/mnist, digits/mnist-m, pacs/photo, pacs/art_painting and clothing, each with a folder for each class.
Fashion-MNIST is Debian's package dataset-fashion-mnist. Weights are torchvision's for MobileNetV2. A pair is left out
if its data is not given.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from crodobo.config import check_name
from crodobo.data.order import full_name
from crodobo.errors import CrodoboError
from crodobo.storage.lock import locked_folder
from streams_cells import METHODS, ORDERS, PAIRS, SIZES, Cell, Places, all_cells, measure
from streams_report import write_report

FASHION = Path("/usr/share/datasets/fashion-mnist")
Record = dict[str, Any]


class Outcome(NamedTuple):
    """A measured cell, or the problem with it."""

    cell: Cell
    record: Record | None
    problem: str = ""


def main() -> None:
    console = Console(soft_wrap=True, highlight=False)
    arguments = parse()
    folder: Path = arguments.output / "streams"
    try:
        with locked_folder(folder):
            sys.exit(run(arguments, folder, console))
    except CrodoboError as error:
        sys.exit(f"error: {error}")


def parse() -> argparse.Namespace:
    """The arguments. Names are checked before anything runs."""

    def names(kind: str, known: tuple[str, ...]) -> Callable[[str], list[str]]:
        def split(text: str) -> list[str]:
            chosen = [full_name(part) if kind == "order" else part.strip() for part in text.split(",")]
            for name in chosen:
                check_name(kind, name, known)
            return chosen

        return split

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def sizes(text: str) -> list[int]:
        return numbers(",".join(names("size", tuple(map(str, SIZES)))(text)))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", default=list(PAIRS), type=names("pair", tuple(PAIRS)), metavar="NAMES")
    parser.add_argument("--orders", default=list(ORDERS), type=names("order", ORDERS), metavar="NAMES")
    parser.add_argument("--sizes", default=list(SIZES), type=sizes, metavar="NUMBERS", help="64,16,1")
    parser.add_argument("--methods", default=list(METHODS), type=names("method", tuple(METHODS)), metavar="NAMES")
    parser.add_argument("--seeds", default=[0, 1], type=numbers, metavar="NUMBERS", help="0,1")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="the pictures of all pairs but glyphs")
    parser.add_argument("--fashion", default=FASHION, type=Path, metavar="FOLDER", help=f"Fashion-MNIST: {FASHION}")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="ImageNet weights of MobileNetV2")
    parser.add_argument("--output", default=Path("runs"), type=Path, metavar="FOLDER", help="runs")
    parser.add_argument("--jobs", default=1, type=int, help="processes at a time")
    parser.add_argument("--report-only", action="store_true", help="make the table and the picture from finished cells")
    try:
        return parser.parse_args()
    except CrodoboError as error:
        parser.error(str(error))


def run(arguments: argparse.Namespace, folder: Path, console: Console) -> int:
    """Measure the chosen cells that are not finished, then write the report. Returns the exit status."""
    file, status = folder / "cells.jsonl", 0
    if not arguments.report_only:
        places = Places(arguments.data, arguments.fashion, arguments.weights)
        pairs = [name for name in arguments.pairs if is_available(name, places, console)]
        chosen = all_cells(pairs, arguments.orders, arguments.sizes, arguments.methods, arguments.seeds)
        finished = read_cells(file)
        waiting = [cell for cell in chosen if cell not in finished]
        if len(waiting) < len(chosen):
            console.print(f"{len(chosen) - len(waiting)} of {len(chosen)} cells are finished already.")
        try:
            failed = run_cells(waiting, places, folder, arguments.jobs, console)
        except KeyboardInterrupt:
            console.print("Stopped. The same command continues with the cells that are left.")
            status = 130
        else:
            if failed:
                console.print(f"{failed} of {len(waiting)} cells failed. The same command tries again.")
                status = 1
    if cells := read_cells(file):
        paths = write_report(list(cells.values()), folder)
        console.print(f"{len(cells)} cells are in {' and '.join(map(str, paths))}.")
    else:
        console.print("There are no finished cells.")
    return status


def is_available(name: str, places: Places, console: Console) -> bool:
    """Whether the data of a pair is given; if not, say so."""
    missing = PAIRS[name].missing(places)
    if missing:
        console.print(f"{name} is left out: it needs {' and '.join(missing)}.")
    return not missing


def read_cells(file: Path) -> dict[Cell, Record]:
    """The finished cells. The line of a kill in the middle of writing is ignored, as are other settings and formats."""
    cells: dict[Cell, Record] = {}
    if not file.exists():
        return cells
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            cell = Cell(*(record[name] for name in ("pair", "order", "size", "method", "seed")))
            same = cell.identity == {name: record.get(name) for name in cell.identity}
        except (ValueError, KeyError, TypeError):
            continue
        if same:
            cells[cell] = record
    return cells


def append(file: Path, record: Record) -> None:
    """Add a line to the file, after ending a line that a kill left unfinished."""
    with file.open("ab+") as lines:
        if lines.tell():
            lines.seek(-1, os.SEEK_END)
            if lines.read(1) != b"\n":
                lines.write(b"\n")
        lines.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def run_cells(waiting: list[Cell], places: Places, folder: Path, jobs: int, console: Console) -> int:
    """Measure cells and append each one when it is finished. Returns the number of those that failed."""
    costs = estimated_costs(waiting, folder)
    started, total, done, failed = time.monotonic(), sum(costs.values()), 0.0, 0
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("{task.fields[left]}"))
    progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    outcomes = in_turn(waiting, places, folder) if jobs < 2 else at_once(waiting, places, folder, jobs)
    with progress, contextlib.closing(outcomes):
        bar = progress.add_task(f"0 of {len(waiting)} cells", total=total, left="")
        for number, (cell, record, problem) in enumerate(outcomes, 1):
            done += costs[cell]
            elapsed = time.monotonic() - started
            left = f"about {timedelta(seconds=round(elapsed * (total - done) / done))} left"
            if record:
                append(folder / "cells.jsonl", record)
                problem = f"online {100 * record['online']:.1f} %, {record['seconds_per_query']:.3f} s a query"
            failed += record is None
            progress.update(bar, completed=done, description=f"{number} of {len(waiting)} cells", left=left)
            gone = timedelta(seconds=round(elapsed))
            console.print(f"{number}/{len(waiting)} {cell.title}: {problem} · {gone} elapsed, {left}", markup=False)
    return failed


def estimated_costs(waiting: list[Cell], folder: Path) -> dict[Cell, float]:
    """The cost of each cell. The first of a pair and seed also makes the warm start."""
    costs: dict[Cell, float] = {}
    made: set[Path] = set()
    for cell in waiting:
        path = cell.warm_start(folder)
        costs[cell] = cell.cost + (0 if path in made or path.exists() else cell.warm_up_cost)
        made.add(path)
    return costs


def attempt(cell: Cell, places: Places, folder: Path, parallel: bool) -> Outcome:
    """Measure a cell. One that fails does not end the others."""
    try:
        return Outcome(cell, measure(cell, places, folder, parallel))
    except CrodoboError as error:
        return Outcome(cell, None, f"failed: {error}")
    except Exception as error:
        traceback.print_exc()
        return Outcome(cell, None, f"failed: {type(error).__name__}: {error}")


def in_turn(waiting: list[Cell], places: Places, folder: Path) -> Generator[Outcome, None, None]:
    """Measure cells one after the other in this process, with the learners in threads."""
    for cell in waiting:
        yield attempt(cell, places, folder, parallel=True)


def at_once(waiting: list[Cell], places: Places, folder: Path, jobs: int) -> Generator[Outcome, None, None]:
    """Measure cells in several processes, each with a single thread."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=end_with_parent) as pool:
        futures = {pool.submit(attempt, cell, places, folder, False): cell for cell in waiting}
        try:
            for future in as_completed(futures):
                try:
                    yield future.result()
                except BrokenProcessPool:
                    yield Outcome(futures[future], None, "failed: its process was killed; memory may have run out")
        except BaseException:  # Ctrl-C, or nobody wants the rest
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def end_with_parent() -> None:
    """Ctrl-C is for the parent, which ends its processes. A killed parent cannot, so they watch it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    main()
