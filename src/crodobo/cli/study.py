"""`crodobo study`: the paper's other tables and figures."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.cli import options as o
from crodobo.cli.resolve import choose, parse_seeds
from crodobo.errors import BadSettings


@o.takes(o.Images, o.Targets, o.Network, o.Meeting)
def study(
    name: Annotated[str | None, typer.Argument(help="Which study; --list names them.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Say what each study shows.")] = False,
    benchmark: o.BenchmarkOption = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    target: o.TargetPath = None,
    seeds: o.Seeds = "0,1,2",
    jobs: o.Jobs = None,
    queries: o.Queries = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder.  [default: runs/study-…, named after the settings]")
    ] = None,
    fresh: o.Fresh = False,
    quiet: o.Quiet = False,
    **shared: Any,
) -> None:
    """Run one of the paper's ablations or sensitivity studies on a benchmark; write its table, figure and a report."""
    arguments = {**locals(), **shared}
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.comparison import carry_out_and_show, default_folder, list_studies
    from crodobo.evaluate.comparison import Plan
    from crodobo.evaluate.comparison.studies import STUDIES, get_study

    if list_all:
        list_studies()
        return
    if name is None:
        raise BadSettings(f"name a study: {', '.join(STUDIES)}; crodobo study --list says what each shows")
    wanted, chosen = get_study(name), choose(arguments)
    if shared["stream"] is not None and any("stream" in entry.stream for entry in wanted.entries):
        raise BadSettings(f"the study {name} has streams of its own; leave --stream out")
    plan = Plan(
        folder=out or default_folder(f"study-{name}", chosen),
        benchmark=chosen.benchmark,
        entries=wanted.entries,
        seeds=parse_seeds(seeds),
        options=chosen.options,
        run=chosen.run,
    )
    carry_out_and_show(plan, wanted, jobs, fresh, quiet, list(chosen.notes))
