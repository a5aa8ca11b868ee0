"""`crodobo study`: the paper's other tables and figures."""

import os
from pathlib import Path
from typing import Annotated

import typer

from crodobo.cli import options as o
from crodobo.errors import BadSettings


def study(
    name: Annotated[str | None, typer.Argument(help="Which study; --list names them.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Say what each study shows.")] = False,
    benchmark: o.BenchmarkOption = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    target: o.TargetPath = None,
    seeds: o.Seeds = "0,1,2",
    jobs: o.Jobs = None,
    query_size: o.QuerySize = None,
    queries: o.Queries = None,
    source_limit: o.SourceLimit = None,
    image_size: o.ImageSize = None,
    fit: o.FitOption = None,
    grey: o.Grey = None,
    flip: o.Flip = None,
    classes: o.ClassesFile = None,
    columns: o.ColumnsOption = None,
    target_columns: o.TargetColumns = None,
    skip_broken: o.SkipBroken = False,
    stream: o.Stream = None,
    backbone: o.Backbone = None,
    pretrained: o.Pretrained = None,
    weights: o.Weights = None,
    norm: o.NormOption = None,
    order: o.OrderOption = None,
    warmup: o.Warmup = None,
    lr: o.Lr = None,
    backbone_lr_scale: o.BackboneLrScale = None,
    weight_decay: o.WeightDecay = None,
    guard: o.Guard = None,
    cache_size: o.CacheSize = None,
    out: Annotated[
        Path | None, typer.Option(help="Result folder.  [default: runs/study-…, named after the settings]")
    ] = None,
    fresh: o.Fresh = False,
    quiet: o.Quiet = False,
) -> None:
    """Run one of the paper's ablations or sensitivity studies on a benchmark; write its table, figure and a report."""
    arguments = dict(locals())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.comparison import carry_out_and_show, default_folder, list_studies
    from crodobo.comparison import Plan
    from crodobo.comparison.studies import STUDIES, get_study

    if list_all:
        list_studies()
        return
    if name is None:
        raise BadSettings(f"name a study: {', '.join(STUDIES)}; crodobo study --list says what each shows")
    wanted, chosen = get_study(name), o.choose(arguments)
    if stream is not None and any("stream" in entry.stream for entry in wanted.entries):
        raise BadSettings(f"the study {name} has streams of its own; leave --stream out")
    plan = Plan(
        folder=out or default_folder(f"study-{name}", chosen),
        benchmark=chosen.benchmark,
        entries=wanted.entries,
        seeds=o.parse_seeds(seeds),
        options=chosen.options,
        run=chosen.run,
    )
    carry_out_and_show(plan, wanted, jobs, fresh, quiet, list(chosen.notes))
