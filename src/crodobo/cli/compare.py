"""`crodobo compare`: methods against each other under one protocol."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.cli import options as o
from crodobo.cli.resolve import choose, parse_seeds
from crodobo.errors import BadSettings


@o.takes(o.Images, o.Targets, o.Network, o.Meeting)
def compare(
    benchmark: o.BenchmarkOption = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    target: o.TargetPath = None,
    methods: Annotated[
        str, typer.Option(help="all, paper (the paper's six, Source-Only and CroDoBo), or names with commas.")
    ] = "all",
    seeds: o.Seeds = "0,1,2",
    jobs: o.Jobs = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Also run the offline protocol where the paper reports it. Takes long.")
    ] = False,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the offline protocol.")] = 10,
    queries: o.Queries = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder.  [default: runs/compare-…, named after the settings]")
    ] = None,
    fresh: o.Fresh = False,
    quiet: o.Quiet = False,
    **shared: Any,
) -> None:
    """Run methods from the same warm starts over the same streams; write the paper's main table, figure and a report.

    Finished runs are kept: the same command goes on where it was stopped, and more methods or seeds are added to what
    is there.
    """
    arguments = {**locals(), **shared}
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.comparison import carry_out_and_show, default_folder
    from crodobo.evaluate.comparison import Entry, Plan

    names, left_out = choose_methods(methods, offline)
    chosen = choose(arguments)
    plan = Plan(
        folder=out or default_folder("compare", chosen),
        benchmark=chosen.benchmark,
        entries=tuple(Entry(name, name, name) for name in names),
        seeds=parse_seeds(seeds),
        options=chosen.options,
        run=chosen.run,
        offline=offline,
        epochs=epochs,
    )
    notes = list(chosen.notes)
    if left_out:
        notes.append(f"left out: {', '.join(left_out)} have no online form; --offline runs them")
    carry_out_and_show(plan, None, jobs, fresh, quiet, notes)


def choose_methods(text: str, offline: bool) -> tuple[list[str], list[str]]:
    """The methods that are asked for, and those left out because they would need the offline protocol.

    >>> choose_methods("dan,shot", offline=True)
    (['dan', 'shot'], [])
    >>> choose_methods("paper,tent", offline=False)[0][-2:]
    ['crodobo', 'tent']
    >>> choose_methods("shot", offline=False)
    Traceback (most recent call last):
    ...
    crodobo.errors.BadSettings: shot has no online form; add --offline
    """
    from crodobo.methods import CRODOBO, PAPER, REGISTRY, get_method

    groups: dict[str, list[str]] = {
        "all": list(REGISTRY),
        "paper": [method.name for method in (*PAPER, *CRODOBO) if method.name not in ("cdan-e", "single", "continual")],
    }
    parts = [part.strip() for part in text.split(",")]
    names: list[str] = []
    for part in parts:
        names += [name for name in groups[part] if name not in names] if part in groups else [part]
    offline_only = [name for name in names if "online" not in get_method(name).protocols]
    if offline or not offline_only:
        return names, []
    if named := [name for name in offline_only if name in parts]:
        have = "have" if len(named) > 1 else "has"
        raise BadSettings(f"{', '.join(named)} {have} no online form; add --offline")
    return [name for name in names if name not in offline_only], offline_only
