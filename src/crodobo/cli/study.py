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
    benchmark: o.BenchmarkOption = "glyphs",
    seeds: o.Seeds = "0,1,2",
    jobs: o.Jobs = None,
    query_size: o.QuerySize = 64,
    queries: o.Queries = None,
    image_size: o.ImageSize = None,
    stream: o.Stream = "random",
    backbone: o.Backbone = "small",
    pretrained: o.Pretrained = False,
    weights: o.Weights = None,
    norm: o.NormOption = None,
    order: o.OrderOption = o.Order.adapt_then_predict,
    warmup: o.Warmup = 300,
    lr: o.Lr = 8e-4,
    backbone_lr_scale: o.BackboneLrScale = None,
    weight_decay: o.WeightDecay = 5e-4,
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
    chosen = get_study(name)
    options, run = o.shared_by_runs(arguments)
    plan = Plan(
        folder=out or default_folder(f"study-{name}-{benchmark}", options, run),
        benchmark=benchmark,
        entries=chosen.entries,
        seeds=o.parse_seeds(seeds),
        options=options,
        run=run,
    )
    carry_out_and_show(plan, chosen, jobs, fresh, quiet, [])
