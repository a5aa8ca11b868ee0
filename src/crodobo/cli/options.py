"""Options that several commands have, and how their values are read."""

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.errors import BadSettings


class Norm(enum.StrEnum):
    mixed = enum.auto()
    running = enum.auto()
    query = enum.auto()


class Order(enum.StrEnum):
    adapt_then_predict = "adapt-then-predict"
    predict_then_adapt = "predict-then-adapt"


BenchmarkOption = Annotated[str, typer.Option("--benchmark", help="What to adapt from and to.")]
QuerySize = Annotated[int, typer.Option(help="Samples in a query.")]
Queries = Annotated[int | None, typer.Option(help="Stop the stream after so many.  [default: all]")]
ImageSize = Annotated[int | None, typer.Option(help="Pixels a side.  [default: the benchmark's]")]
Backbone = Annotated[str, typer.Option(help="small, a timm name, or torchvision/NAME.")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="Fetch the library's pretrained weights.")]
Weights = Annotated[Path | None, typer.Option(help="Initial backbone weights (.safetensors, .pth).")]
NormOption = Annotated[
    Norm | None,
    typer.Option("--norm", help="BatchNorm statistics at prediction.  [default: the method's, mostly mixed]"),
]
OrderOption = Annotated[Order, typer.Option("--order", help="Which comes first.")]
Stream = Annotated[
    str,
    typer.Option(
        metavar="ORDER",
        help="In which order the target comes: random; by-class; dirichlet(α), classes in bursts, the stronger the "
        "smaller α; or drift, classes come and go slowly.",
    ),
]
Warmup = Annotated[int, typer.Option(help="Steps on the source before the stream.")]
Lr = Annotated[float, typer.Option(help="Learning rate of new layers.")]
BackboneLrScale = Annotated[
    float | None, typer.Option(help="Times that for the backbone.  [default: 0.01 pretrained, 1 random]")
]
WeightDecay = Annotated[float, typer.Option(help="Pull of all weights towards zero.")]
Seeds = Annotated[str, typer.Option(help="Seeds, with commas between them.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Processes at a time.  [default: the cores]")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start over instead of keeping finished runs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result's folder and nothing else.")]


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Settings as they are given on the command line.

    >>> parse_settings(["gamma=2", "weight=0.5"])
    {'gamma': '2', 'weight': '0.5'}
    """
    for pair in pairs:
        if "=" not in pair:
            raise BadSettings(f"--set {pair} has no value; write --set NAME=VALUE")
    return dict(pair.split("=", 1) for pair in pairs)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as they are given on the command line.

    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadSettings(f"--seeds {text} is no list of numbers; write for example --seeds 0,1,2") from None


def given(**options: Any) -> dict[str, Any]:
    """The options that have a value, as plain data.

    >>> given(lr=0.1, weights=None, norm=Norm.query)
    {'lr': 0.1, 'norm': 'query'}
    """
    known = {name: value for name, value in options.items() if value is not None}
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in known.items()}


LEARNING = ("backbone", "pretrained", "weights", "norm", "order", "warmup", "lr", "backbone_lr_scale", "weight_decay")
STREAMING = ("query_size", "queries", "image_size", "stream")


def shared_by_runs(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of a command's arguments, the method's settings and the stream's that all of its runs share.

    >>> shared_by_runs(dict.fromkeys(LEARNING + STREAMING) | {"lr": 0.1, "queries": 5, "seeds": "0"})
    ({'lr': 0.1}, {'queries': 5})
    """
    learning, streaming = ({name: arguments[name] for name in names} for names in (LEARNING, STREAMING))
    return given(**learning), given(**streaming)


def as_name(setting: str, value: Any) -> str:
    """A setting as a part of a folder's name, without what is awkward in a path or a shell.

    >>> as_name("query_size", 8), as_name("stream", "dirichlet(0.1)"), as_name("pretrained", True)
    ('-query-size8', '-stream-dirichlet0.1', '-pretrained')
    """
    text = value.stem if isinstance(value, Path) else "" if value is True else str(value)
    text = text.translate(str.maketrans("/", "-", "()"))
    return f"-{setting.replace('_', '-')}{'-' if text[:1].isalpha() else ''}{text}"
