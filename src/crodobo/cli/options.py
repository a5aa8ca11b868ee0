"""Options that several commands have, one by one and in groups.

A command takes a group with the decorator `takes`; its own options stand in its signature.
"""

import enum
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


class Norm(enum.StrEnum):
    mixed = enum.auto()
    running = enum.auto()
    query = enum.auto()


class Order(enum.StrEnum):
    adapt_then_predict = "adapt-then-predict"
    predict_then_adapt = "predict-then-adapt"


class Burn(enum.StrEnum):
    strict = enum.auto()
    standard = enum.auto()
    off = enum.auto()


class Fit(enum.StrEnum):
    squash = enum.auto()
    crop = enum.auto()
    pad = enum.auto()


BenchmarkOption = Annotated[
    str | None,
    typer.Option(
        "--benchmark",
        "--preset",
        help="What to adapt from and to: glyphs, or a preset of `crodobo data`.  [default: glyphs]",
    ),
]
Folder = Annotated[Path | None, typer.Option("--data", help="The folder of a preset's data.")]
SourcePath = Annotated[
    Path | None,
    typer.Option("--source", help="Labelled public images: a folder of class folders, a list, a table, or IDX files."),
]
TargetPath = Annotated[Path | None, typer.Option("--target", help="Images to adapt to, labelled to be scored.")]
ClassesFile = Annotated[
    Path | None, typer.Option("--classes", help="TOML that maps, merges and drops classes of either side.")
]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", metavar="IMAGE,LABEL", help="Columns of a CSV or Parquet table.")
]
TargetColumns = Annotated[
    str | None,
    typer.Option("--target-columns", metavar="IMAGE,LABEL", help="The target's, if they differ from the source's."),
]
SourceLimit = Annotated[int | None, typer.Option(help="Use so many of the source's images.  [default: all]")]
FitOption = Annotated[
    Fit | None, typer.Option("--fit", help="How images become square.  [default: squash, or the preset's]")
]
Grey = Annotated[bool | None, typer.Option("--grey/--colour", help="One channel or three.  [default: colour]")]
Flip = Annotated[
    bool | None,
    typer.Option("--flip/--no-flip", help="Whether a mirrored image is still of its class.  [default: it is]"),
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out images that cannot be decoded.")]
CacheSize = Annotated[float | None, typer.Option(metavar="GB", help="Room for decoded sources.  [default: 50]")]
QuerySize = Annotated[int | None, typer.Option(help="Samples in a query.  [default: 64]")]
Queries = Annotated[int | None, typer.Option(help="Stop the stream after so many.  [default: all]")]
ImageSize = Annotated[
    int | None,
    typer.Option(
        help="Pixels a side.  [default: the benchmark's; for images of your own 64, or 224 with a --backbone]"
    ),
]
Backbone = Annotated[
    str | None, typer.Option(help="small, a timm name, or torchvision/NAME.  [default: small, or the preset's]")
]
Pretrained = Annotated[
    bool | None, typer.Option("--pretrained/--random", help="Fetch the library's pretrained weights, or not.")
]
Weights = Annotated[Path | None, typer.Option(help="Initial backbone weights (.safetensors, .pth).")]
NormOption = Annotated[
    Norm | None,
    typer.Option("--norm", help="BatchNorm statistics at prediction.  [default: the method's, mostly mixed]"),
]
OrderOption = Annotated[Order | None, typer.Option("--order", help="Which comes first.  [default: adapt-then-predict]")]
Guard = Annotated[
    bool | None,
    typer.Option(
        "--guard/--no-guard",
        help="Leave bursts of few classes unlearned, and restore good weights after a collapse, or not.  [default: do]",
    ),
]
Stream = Annotated[
    str | None,
    typer.Option(
        metavar="ORDER",
        help="In which order the target comes: random; by-class; dirichlet(α), classes in bursts, the stronger the "
        "smaller α; or drift, classes come and go slowly.  [default: random]",
    ),
]
Warmup = Annotated[
    int | None, typer.Option(help="Steps on the source before the stream.  [default: 300, or the preset's]")
]
Lr = Annotated[float | None, typer.Option(help="Learning rate of new layers.  [default: 0.0008]")]
BackboneLrScale = Annotated[
    float | None, typer.Option(help="Times that for the backbone.  [default: 0.01 pretrained, 1 random]")
]
WeightDecay = Annotated[float | None, typer.Option(help="Pull of all weights towards zero.  [default: 0.0005]")]
BurnOption = Annotated[
    Burn | None,
    typer.Option(
        "--burn",
        help="strict: the process overwrites all that it frees, and proves it first. standard: what queries own is "
        "overwritten. off: nothing is, and methods may keep target data.",
    ),
]
SignKey = Annotated[
    Path | None,
    typer.Option("--sign-key", metavar="FILE", help="Sign the ledger with this Ed25519 key (PEM or 32 raw bytes)."),
]
Seeds = Annotated[str, typer.Option(help="Seeds, with commas between them.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes at a time.  [default: the cores]")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of keeping finished runs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result's folder and nothing else.")]


class Images:
    """Options on images that are read from a disk."""

    query_size: QuerySize = None
    source_limit: SourceLimit = None
    image_size: ImageSize = None
    fit: FitOption = None
    grey: Grey = None
    flip: Flip = None
    classes: ClassesFile = None
    columns: ColumnsOption = None
    skip_broken: SkipBroken = False
    cache_size: CacheSize = None


class Targets:
    """Options on a target that is a benchmark's."""

    target_columns: TargetColumns = None
    stream: Stream = None


class Network:
    """Options on networks and how they learn the source."""

    backbone: Backbone = None
    pretrained: Pretrained = None
    weights: Weights = None
    warmup: Warmup = None
    lr: Lr = None
    backbone_lr_scale: BackboneLrScale = None
    weight_decay: WeightDecay = None


class Meeting:
    """Options on how a query is met."""

    norm: NormOption = None
    order: OrderOption = None
    guard: Guard = None


class OneMethod:
    """Options of commands that run one method."""

    method: Annotated[str, typer.Option(help="Any of `crodobo methods`.")] = "crodobo"
    learners: Annotated[int | None, typer.Option(help="Learners K.  [default: the method's, 2 for crodobo]")] = None
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0
    option: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the method; may be repeated."),
    ] = None
    parallel: Annotated[bool, typer.Option("--parallel/--sequence", help="How the learners run.")] = True
    threads: Annotated[int | None, typer.Option(help="Threads inside an operation.  [default: cores / learners]")] = (
        None
    )
    sign_key: SignKey = None


class Private:
    """Options of commands that meet private images."""

    burn: BurnOption = Burn.strict
    prove_every: Annotated[
        int | None,
        typer.Option(
            metavar="QUERIES", help="Search the memory for a test query again every so often.  [default: at the start]"
        ),
    ] = None
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append events to this file, as JSON lines; numbers alone.")
    ] = None


def takes(*groups: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command with the options of these groups too; it gets their values by name, as `**shared`.

    >>> class Colours:
    ...     red: Annotated[int, typer.Option(help="How much red.")] = 0
    >>> @takes(Colours)
    ... def paint(picture: str, **shared: Any) -> None: ...
    >>> list(inspect.signature(paint).parameters)
    ['picture', 'red']
    """
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(group, name), annotation=hint)
        for group in groups
        for name, hint in get_type_hints(group, include_extras=True).items()
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def taking(**values: Any) -> None:
            command(**values)

        own = inspect.signature(command)
        kept = [each for each in own.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters = [*kept, *shared]
        taking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        taking.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
        return taking

    return decorate
