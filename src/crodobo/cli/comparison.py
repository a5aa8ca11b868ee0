"""What `compare` and `study` have in common: carrying a plan out with a live view, and showing what came of it."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from crodobo.cli.console import NumbersColumn, SteadyConsole
from crodobo.cli.naming import as_data_name, as_name
from crodobo.cli.progress import make_reporter
from crodobo.cli.resolve import Chosen
from crodobo.config import MethodSettings
from crodobo.data.presets import get_preset, is_preset
from crodobo.engine import available_cores
from crodobo.errors import CrodoboError
from crodobo.evaluate.comparison import Monitor, Plan, Task, carry_out, collect, widen
from crodobo.evaluate.comparison.studies import STUDIES, Study
from crodobo.evaluate.comparison.work import finished_result
from crodobo.evaluate.report.comparison_page import write_comparison
from crodobo.evaluate.report.table import Table as ResultTable
from crodobo.evaluate.run import check_same_data, load_data
from crodobo.evaluate.settings import RunSettings
from crodobo.nn.learner import make_learners
from crodobo.storage.lock import locked_folder


def carry_out_and_show(
    plan: Plan, study: Study | None, jobs: int | None, fresh: bool, quiet: bool, notes: list[str]
) -> None:
    """Run what is not done yet, write tables, figures and report, and print the main table."""
    settings = plan.settings(plan.entries[0], plan.seeds[0])
    with make_reporter(quiet) as reporter:
        benchmark = load_data(settings, reporter)  # made once, before many processes would
    make_learners(benchmark.source, 1, 0, settings.options)  # is there a backbone?
    with locked_folder(plan.folder):
        _refuse_strangers(plan.folder)
        if fresh:
            forget(plan.tasks)
        console = SteadyConsole(quiet=quiet)
        for note in notes:
            console.print(note, highlight=False, markup=False, soft_wrap=True)
        for task in plan.tasks:
            if task.kind == "online" and (result := finished_result(task)):
                check_same_data(result, benchmark, task.folder)
        with watching(console) as monitor:
            problems = carry_out(plan, jobs or available_cores(), monitor)
        results = collect(plan if study else widen(plan), problems)
        table = write_comparison(results, study)
    if not print_table(console, table):
        console.print("the classes are in the report; the terminal is too narrow for them", highlight=False)
    if quiet:
        print(plan.folder)
    else:
        console.print(f"{plan.folder}/report.html", highlight=False, markup=False, soft_wrap=True)
    if problems:
        names = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise CrodoboError(
            f"{len(problems)} of {len(plan.tasks)} runs failed, the table is made of the others ({names})"
        )


def print_table(console: Console, table: ResultTable) -> bool:
    """Print a table, without its details where there is no room for them; whether nothing was left out."""
    detailed = table.to_terminal()
    room = console.options.update(max_width=10_000)
    fits = Measurement.get(console, room, detailed).maximum <= console.width
    console.print(detailed if fits else table.to_terminal(detailed=False), highlight=False)
    return fits or not any(column.detail for column in table.columns)


def default_folder(what: str, chosen: Chosen) -> Path:
    """A folder's name that tells comparisons with different settings apart.

    >>> default_folder("compare", Chosen("glyphs", {"lr": 8e-4, "warmup": 20}, {"queries": 5})).as_posix()
    'runs/compare-glyphs-warmup20-queries5'
    """
    name = f"{what}-{chosen.benchmark.replace('/', '-')}"
    usual = get_preset(chosen.benchmark).settings if is_preset(chosen.benchmark) else {}
    for given, model in ((chosen.options, MethodSettings), (chosen.run, RunSettings)):
        for setting, value in given.items():
            known = setting in ("data", "cache_size") or value == usual.get(setting)
            if not known and value != model.model_fields[setting].default:
                name += as_name(setting, value)
    return Path("runs") / f"{name}{as_data_name(chosen.run.get('data'))}"


def list_studies() -> None:
    """Print what each study shows."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, study in STUDIES.items():
        table.add_row(name, f"{study.shows}; {len(study.entries)} runs a seed")
    Console().print(table, highlight=False)


def _refuse_strangers(folder: Path) -> None:
    """A folder with a report of a single run is not ours to overwrite."""
    if (folder / "result.json").exists():
        raise CrodoboError(f"{folder} holds a single run; choose another --out")


def forget(tasks: list[Task]) -> None:
    """Remove what tasks have left behind."""
    for task in tasks:
        if task.kind != "warm-up":
            shutil.rmtree(task.folder, ignore_errors=True)
        task.warm_start.unlink(missing_ok=True)


@contextmanager
def watching(console: Console) -> Iterator[Monitor]:
    """A monitor that suits where the output goes."""
    if console.quiet:
        yield Monitor()
    elif console.is_terminal:
        live = LiveMonitor(console)
        with live.bars:
            yield live
    else:
        yield PlainMonitor(console)


class PlainMonitor(Monitor):
    """A line for each run that ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._all = self._ended = 0
        self._last: dict[str, str] = {}
        self._begun: dict[str, float] = {}

    def begun(self, tasks: int, finished: int) -> None:
        self._all, self._ended = tasks, finished
        kept = f", {finished} of them kept from before" if finished else ""
        self._print(f"{tasks} runs, warm-ups included{kept}")

    def started(self, task: Task) -> None:
        self._begun[task.title] = time.monotonic()

    def progress(self, task: Task, done: int, total: int, text: str) -> None:
        self._last[task.title] = text

    def ended(self, task: Task, problem: str | None) -> None:
        self._ended += 1
        seconds = time.monotonic() - self._begun.get(task.title, time.monotonic())
        told = f"FAILED, {problem}" if problem else f"{self._last.get(task.title, '')}, {seconds:.0f} s"
        self._print(f"{self._ended}/{self._all} {task.title}: {told}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


class LiveMonitor(Monitor):
    """A bar for everything and one for each run that is going on."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            NumbersColumn(),
            console=console,
        )
        self._everything = self.bars.add_task("all runs", total=1)
        self._bar: dict[str, TaskID] = {}

    def begun(self, tasks: int, finished: int) -> None:
        kept = f"{finished} kept from before" if finished else ""
        self.bars.update(self._everything, total=tasks, completed=finished, numbers=kept)

    def started(self, task: Task) -> None:
        self._bar[task.title] = self.bars.add_task(task.title, total=1)

    def progress(self, task: Task, done: int, total: int, text: str) -> None:
        self.bars.update(self._bar[task.title], completed=done, total=total, numbers=text)

    def ended(self, task: Task, problem: str | None) -> None:
        if task.title in self._bar:
            self.bars.remove_task(self._bar.pop(task.title))
        self.bars.advance(self._everything)
        if problem:
            self.bars.console.print(f"{task.title}: FAILED, {problem}", highlight=False, markup=False, soft_wrap=True)
