"""`crodobo run`: one method over one benchmark's stream."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crodobo.burn.relaunch import relaunch
from crodobo.cli import options as o
from crodobo.cli.resolve import as_data_name, as_name, choose, method_settings

if TYPE_CHECKING:
    from crodobo.evaluate.settings import RunSettings


@o.takes(o.OneMethod, o.Images, o.Targets, o.Network, o.Meeting)
def run(
    benchmark: o.BenchmarkOption = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    target: o.TargetPath = None,
    queries: o.Queries = None,
    stream_seed: Annotated[int | None, typer.Option(help="Decides that order alone.  [default: --seed]")] = None,
    tau: Annotated[float | None, typer.Option(help="Confidence of a pseudo-label.  [default: 0.95]")] = None,
    lam: Annotated[float | None, typer.Option(help="Weight of the diversity term.  [default: 0.4]")] = None,
    objective: Annotated[
        str | None, typer.Option(help="CroDoBo's target objective: terms joined by +, or a preset's name.")
    ] = None,
    running_weight: Annotated[
        float | None, typer.Option(help="Weight of the running statistics in `mixed`.  [default: 0.8]")
    ] = None,
    burn: o.BurnOption = o.Burn.standard,
    checkpoint_every: Annotated[int, typer.Option(help="Queries between checkpoints.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Result folder.  [default: runs/, named after the settings]")] = None,
    fresh: o.Fresh = False,
    resume: Annotated[bool, typer.Option("--resume", hidden=True)] = False,
    quiet: o.Quiet = False,
    **shared: Any,
) -> None:
    """Adapt to a labelled target query by query, predict, erase; write numbers, curve, report and model.

    The target is that of a benchmark, or images of your own (--source and --target). For a stream without labels there
    is `crodobo adapt`.
    """
    arguments = {**locals(), **shared}
    if burn is o.Burn.strict:
        relaunch()
    # Threads inside an operation that wait by spinning can stall each other on a shared machine; read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.progress import make_observer
    from crodobo.cli.summary import print_run
    from crodobo.evaluate.run import run as run_benchmark
    from crodobo.evaluate.settings import RunSettings

    chosen = choose(arguments)
    settings = RunSettings.of(
        benchmark=chosen.benchmark,
        method=shared["method"],
        options=method_settings(arguments, chosen),
        sign_key=shared["sign_key"],
        **chosen.run,
    )
    results = out or Path("runs") / run_name(settings)
    with make_observer(quiet) as reporter:
        for note in chosen.notes:
            reporter.note(note)
        result = run_benchmark(settings, results, fresh=fresh, observer=reporter)
    if quiet:
        print(results)
    else:
        print_run(result, results)


def run_name(settings: "RunSettings") -> str:
    """A folder's name that tells runs with different settings apart.

    >>> from crodobo.evaluate.settings import RunSettings
    >>> from crodobo.methods import CroDoBo
    >>> run_name(RunSettings(options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0'
    >>> run_name(RunSettings(queries=5, options=CroDoBo.Settings(seed=1, backbone="torchvision/resnet18")))
    'glyphs-crodobo-k2-seed1-queries5-backbone-torchvision-resnet18'
    >>> run_name(RunSettings(stream="dirichlet(0.1)", stream_seed=3, options=CroDoBo.Settings()))
    'glyphs-crodobo-k2-seed0-stream-dirichlet0.1-stream-seed3'
    """
    options = settings.options
    name = f"{settings.benchmark.replace('/', '-')}-{settings.method}-k{options.learners}-seed{options.seed}"
    named = {"benchmark", "method", "options", "learners", "seed", "parallel", "checkpoint_every", "cache_size", "data"}
    for part in (settings, options):
        for field, info in type(part).model_fields.items():
            value = getattr(part, field)
            if field not in named and value != info.default:
                name += as_name(field, value)
    return name + as_data_name(settings.data)
