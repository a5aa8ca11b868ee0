"""`crodobo run`: one method over one benchmark's stream."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crodobo.cli import options as o

if TYPE_CHECKING:
    from crodobo.config import RunSettings


def run(
    benchmark: o.BenchmarkOption = "glyphs",
    method: Annotated[str, typer.Option(help="Any of `crodobo methods`.")] = "crodobo",
    learners: Annotated[int | None, typer.Option(help="Learners K.  [default: the method's, 2 for crodobo]")] = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    query_size: o.QuerySize = 64,
    queries: o.Queries = None,
    stream: o.Stream = "random",
    stream_seed: Annotated[int | None, typer.Option(help="Decides that order alone.  [default: --seed]")] = None,
    image_size: o.ImageSize = None,
    backbone: o.Backbone = "small",
    pretrained: o.Pretrained = False,
    weights: o.Weights = None,
    tau: Annotated[float | None, typer.Option(help="Confidence of a pseudo-label.  [default: 0.95]")] = None,
    lam: Annotated[float | None, typer.Option(help="Weight of the diversity term.  [default: 0.4]")] = None,
    objective: Annotated[
        str | None, typer.Option(help="CroDoBo's target objective: terms joined by +, or a preset's name.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the method; may be repeated."),
    ] = None,
    norm: o.NormOption = None,
    running_weight: Annotated[float, typer.Option(help="Weight of the running statistics in `mixed`.")] = 0.8,
    order: o.OrderOption = o.Order.adapt_then_predict,
    warmup: o.Warmup = 300,
    lr: o.Lr = 8e-4,
    backbone_lr_scale: o.BackboneLrScale = None,
    weight_decay: o.WeightDecay = 5e-4,
    burn: Annotated[
        bool, typer.Option("--burn/--no-burn", help="Refuse methods that keep target data, or allow them.")
    ] = True,
    parallel: Annotated[bool, typer.Option("--parallel/--sequence", help="How the learners run.")] = True,
    threads: Annotated[
        int | None, typer.Option(help="Threads inside an operation.  [default: cores / learners]")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Queries between checkpoints.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Result folder.  [default: runs/, named after the settings]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's checkpoint.")] = False,
    quiet: o.Quiet = False,
) -> None:
    """Adapt to a benchmark's stream query by query, predict, erase; write numbers, curve, report and model."""
    # Threads inside an operation that wait by spinning can stall each other on a shared machine; read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.progress import make_reporter, print_summary
    from crodobo.config import RunSettings
    from crodobo.methods import get_method
    from crodobo.run import run as run_benchmark

    given = o.given(
        learners=learners,
        seed=seed,
        backbone=backbone,
        pretrained=pretrained,
        weights=weights,
        tau=tau,
        lam=lam,
        objective=objective,
        norm=norm,
        burn=burn,
        running_weight=running_weight,
        order=order,
        warmup=warmup,
        lr=lr,
        backbone_lr_scale=backbone_lr_scale,
        weight_decay=weight_decay,
        parallel=parallel,
        threads=threads,
    )
    given |= o.parse_settings(option or [])
    settings = RunSettings.of(
        benchmark=benchmark,
        method=method,
        query_size=query_size,
        queries=queries,
        stream=stream,
        stream_seed=stream_seed,
        image_size=image_size,
        checkpoint_every=checkpoint_every,
        options=get_method(method).Settings.of(**given),
    )
    folder = out or Path("runs") / run_name(settings)
    with make_reporter(quiet) as reporter:
        result = run_benchmark(settings, folder, resume=resume, reporter=reporter)
    if quiet:
        print(folder)
    else:
        print_summary(result, folder)


def run_name(settings: "RunSettings") -> str:
    """A folder's name that tells runs with different settings apart.

    >>> from crodobo.config import RunSettings
    >>> from crodobo.methods import CroDoBo
    >>> run_name(RunSettings(options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0'
    >>> run_name(RunSettings(queries=5, options=CroDoBo.Settings(seed=1, backbone="torchvision/resnet18")))
    'glyphs-crodobo-k2-seed1-queries5-backbone-torchvision-resnet18'
    >>> run_name(RunSettings(stream="dirichlet(0.1)", stream_seed=3, options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0-stream-dirichlet0.1-stream-seed3'
    """
    options = settings.options
    name = f"{settings.benchmark}-{settings.method}-k{options.learners}-seed{options.seed}"
    named = {"benchmark", "method", "options", "learners", "seed", "parallel", "checkpoint_every"}
    for part in (settings, options):
        for field, info in type(part).model_fields.items():
            value = getattr(part, field)
            if field not in named and value != info.default:
                name += o.as_name(field, value)
    return name
