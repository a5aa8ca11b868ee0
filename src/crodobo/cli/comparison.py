"""What `compare`, `study` and `audit membership` share: run a plan, and print its table."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from crodobo.cli.console import SteadyConsole
from crodobo.cli.naming import as_data_name, as_name
from crodobo.cli.progress import QuietView, make_observer
from crodobo.cli.resolve import Chosen
from crodobo.config import MethodSettings
from crodobo.data import Benchmark
from crodobo.data.presets import get_preset, is_preset
from crodobo.engine import available_cores
from crodobo.errors import CrodoboError
from crodobo.evaluate.comparison import Plan, Task, collect_results, include_earlier_runs, run_tasks
from crodobo.evaluate.comparison.studies import STUDIES, Study
from crodobo.evaluate.comparison.tasks import finished_result
from crodobo.evaluate.report import check_report_packages
from crodobo.evaluate.report.comparison_page import write_comparison
from crodobo.evaluate.report.table import Table as ResultTable
from crodobo.evaluate.run import check_same_data, load_data
from crodobo.evaluate.settings import RunSettings
from crodobo.nn.learners import make_learners
from crodobo.storage.lock import locked_folder


def carry_out_and_show(
    plan: Plan, study: Study | None, jobs: int | None, fresh: bool, quiet: bool, notes: Iterable[str]
) -> None:
    """Run what is not finished, write tables, figures and report, and print the main table."""
    check_report_packages()
    settings = plan.settings(plan.entries[0], plan.seeds[0])
    with prepared(plan.folder, plan.tasks, settings, fresh, quiet, notes) as (benchmark, observer):
        for task in plan.tasks:
            if task.kind == "online" and (result := finished_result(task)):
                check_same_data(result, benchmark, task.folder)
        problems = run_tasks(plan.tasks, jobs or available_cores(), observer)
        results = collect_results(plan if study else include_earlier_runs(plan), problems)
        table = write_comparison(results, study)
    console = SteadyConsole(quiet=quiet)
    if not print_table(console, table):
        console.print_line("The terminal is too narrow for the classes. They are in the report.")
    console.print_line(f"{plan.folder}/report.html")
    if quiet:
        print(plan.folder)
    if problems:
        failed = " ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise CrodoboError(f"{len(problems)} of {len(plan.tasks)} runs failed. The table shows the others. {failed}")


@contextmanager
def prepared(
    folder: Path, tasks: Sequence[Task], settings: RunSettings, fresh: bool, quiet: bool, notes: Iterable[str]
) -> Iterator[tuple[Benchmark, QuietView]]:
    """The data of many runs and an observer, with their folder locked. What would fail in every run fails here."""
    with make_observer(quiet) as observer:
        benchmark = load_data(settings, observer)  # fills the cache once, before many processes need it
        make_learners(benchmark.source, 1, 0, settings.options)
        with locked_folder(folder, settings=("out",)):
            if (folder / "result.json").exists():
                raise CrodoboError(f"{folder} holds a single run.", "Choose another result folder.", settings=("out",))
            for task in tasks if fresh else ():
                if task.kind != "warm-up":
                    shutil.rmtree(task.folder, ignore_errors=True)
                task.warm_start.unlink(missing_ok=True)
            for note in notes:
                observer.note(note)
            yield benchmark, observer


def print_table(console: Console, table: ResultTable) -> bool:
    """Print a table, without its details if they do not fit. Return whether everything is shown.

    If it is still too wide, its columns are printed in several tables.
    """
    complete = fits(console, table)
    shown = table if complete else table.without_details()
    parts = split(console, shown)
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        told = replace(part, caption="" if number else part.caption, notes=part.notes if last else [])
        console.print(told.to_terminal(), highlight=False)
    return complete or len(shown.columns) == len(table.columns)


def split(console: Console, table: ResultTable) -> list[ResultTable]:
    """Tables that fit, with as many of the columns as possible each."""
    groups: list[list[int]] = [[]]
    for number in range(len(table.columns)):
        if groups[-1] and not fits(console, table.only([*groups[-1], number])):
            groups.append([])
        groups[-1].append(number)
    return [table.only(group) for group in groups]


def fits(console: Console, table: ResultTable) -> bool:
    """Whether a table is not wider than the terminal. Caption and notes are wrapped, so they do not count."""
    columns = replace(table, caption="", notes=[]).to_terminal()
    return Measurement.get(console, console.options.update(max_width=10_000), columns).maximum <= console.width


def default_folder(what: str, chosen: Chosen) -> Path:
    """A folder named after the settings, so that different comparisons get different folders.

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
        table.add_row(name, f"{study.shows}; {len(study.entries)} runs for each seed")
    Console().print(table, highlight=False)
