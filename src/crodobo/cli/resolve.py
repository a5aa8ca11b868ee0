"""What a command's options come to: settings of the data, of the method and of the run."""

import enum
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from crodobo.errors import BadSettings

if TYPE_CHECKING:
    from crodobo.config import DataSettings, MethodSettings


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

    >>> from crodobo.cli.options import Norm
    >>> given(lr=0.1, weights=None, norm=Norm.query)
    {'lr': 0.1, 'norm': 'query'}
    """
    known = {name: value for name, value in options.items() if value is not None}
    return {name: value.value if isinstance(value, enum.Enum) else value for name, value in known.items()}


LEARNING = (
    *("backbone", "pretrained", "weights", "norm", "running_weight", "order", "warmup", "lr", "backbone_lr_scale"),
    *("weight_decay", "learners", "seed", "tau", "lam", "objective", "burn", "guard", "parallel", "threads"),
)
STREAMING = ("query_size", "queries", "image_size", "stream", "stream_seed", "checkpoint_every", "cache_size")
OWN_SIZE = 224  # of images of one's own, for a backbone other than the small one


@dataclass(frozen=True)
class Chosen:
    """What a command's arguments come to: the benchmark, settings of the method and of the run."""

    benchmark: str
    options: dict[str, Any]
    run: dict[str, Any]
    notes: tuple[str, ...] = ()


def choose(arguments: dict[str, Any], sides: tuple[str, ...] = ("source", "target")) -> Chosen:
    """Settle a command's arguments: what is not given is the preset's, and else the default.

    `sides` are the paths that images of one's own need.

    >>> choose({"benchmark": "glyphs", "lr": 0.1, "queries": 5, "seeds": "0"})
    Chosen(benchmark='glyphs', options={'lr': 0.1}, run={'queries': 5}, notes=())
    """
    from crodobo.data.presets import get_preset, is_preset

    learning, streaming = (given(**{name: arguments.get(name) for name in names}) for names in (LEARNING, STREAMING))
    if "weights" in learning:
        learning["weights"] = learning["weights"].expanduser().absolute()
    data = data_arguments(arguments)
    name = arguments["benchmark"] or own_name(data, sides)
    if not is_preset(name):
        if data:
            streaming["data"] = settle_data(data)
            if learning.get("backbone", "small") != "small":
                streaming.setdefault("image_size", OWN_SIZE)
        return Chosen(name, learning, streaming)
    preset = get_preset(name)
    options, notes = dict(preset.options), []
    if "backbone" in learning or "weights" in learning:
        options.pop("pretrained", None)  # the preset's weights are of the preset's network
    learned = preset.options.get("pretrained") and not (learning | options).get("pretrained", False)
    if learned and "weights" not in learning and "warmup" not in learning:
        options.pop("warmup", None)
        notes.append(
            "from random weights, so the warm-up is 300 steps; --pretrained or --weights starts from better ones"
        )
    if "flip" in data:
        data["views"] = preset.views.model_dump() | {"flip": data.pop("flip")}
    run = preset.run | streaming | {"data": settle_data(preset.data | data)}
    return Chosen(name, options | learning, run, tuple(notes))


def method_settings(arguments: dict[str, Any], chosen: Chosen) -> "MethodSettings":
    """The settings of the one method that a command runs."""
    from crodobo.methods import get_method

    return get_method(arguments["method"]).Settings.of(**chosen.options | parse_settings(arguments["option"] or []))


def data_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of a command's arguments, those on data on a disk that were given."""
    columns = parse_columns(arguments.get("columns"))
    return given(
        folder=arguments.get("folder"),
        source=arguments.get("source"),
        target=arguments.get("target"),
        classes=arguments.get("classes"),
        source_columns=columns,
        target_columns=parse_columns(arguments.get("target_columns")) or columns,
        source_limit=arguments.get("source_limit"),
        fit=arguments.get("fit"),
        grey=arguments.get("grey"),
        flip=arguments.get("flip"),
        skip_broken=arguments.get("skip_broken") or None,
    )


def settle_data(data: dict[str, Any]) -> "DataSettings":
    """The settings that these arguments are."""
    from crodobo.config import DataSettings
    from crodobo.data.classes import read_classes

    data = dict(data)
    if "classes" in data:
        data["classes"] = read_classes(data["classes"])
    if "flip" in data:
        data["views"] = {"flip": data.pop("flip")}
    for name in ("folder", "source", "target"):
        if name in data:
            data[name] = data[name].expanduser().absolute()  # a run may be resumed from elsewhere
    return DataSettings.of(**data)


def own_name(data: dict[str, Any], sides: tuple[str, ...] = ("source", "target")) -> str:
    """The name of a benchmark that was given by its paths, or that of the built-in one.

    >>> own_name({"source": Path("data/public"), "target": Path("private.csv")})
    'public-to-private'
    >>> own_name({})
    'glyphs'
    """
    if not data:
        return "glyphs"
    if "folder" in data:
        raise BadSettings("--data is the folder of a preset; name it with --preset, or use --source and --target")
    for side in sides:
        if side not in data:
            needed = " and ".join(f"--{each}" for each in sides)
            raise BadSettings(f"--{side} PATH is missing; images of your own need {needed}")
    paths = [data[side].expanduser().absolute().resolve() for side in sides]
    return "-to-".join((path.name if path.is_dir() else path.name.split(".")[0]) or "root" for path in paths)


def parse_columns(text: str | None) -> tuple[str, str] | None:
    """Two columns as they are given on the command line.

    >>> parse_columns("file, kind")
    ('file', 'kind')
    """
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise BadSettings(f"--columns {text} names no two columns; write for example --columns file,label")
    return parts[0], parts[1]


def as_name(setting: str, value: Any) -> str:
    """A setting as a part of a folder's name, without what is awkward in a path or a shell.

    >>> as_name("query_size", 8), as_name("stream", "dirichlet(0.1)"), as_name("pretrained", True)
    ('-query-size8', '-stream-dirichlet0.1', '-pretrained')
    """
    if isinstance(value, tuple):
        value = "-".join(map(str, value))
    text = value.stem if isinstance(value, Path) else "" if value is True else str(value)
    text = text.translate(str.maketrans("/", "-", "()"))
    return f"-{setting.replace('_', '-')}{'-' if text[:1].isalpha() else ''}{text}"


def as_data_name(data: "DataSettings | None") -> str:
    """What sets data on a disk apart, as a part of a folder's name.

    >>> from crodobo.config import DataSettings
    >>> as_data_name(DataSettings(grey=True, source_limit=100, fit="pad"))
    '-source-limit100-fit-pad-grey'
    >>> as_data_name(DataSettings(source=Path("/data/public")))
    '-at-b6c8e6'
    """
    if data is None:
        return ""
    paths = [str(path) for path in (data.folder, data.source, data.target) if path]
    name = f"-at-{hashlib.sha256(repr(paths).encode()).hexdigest()[:6]}" if paths else ""
    for field, info in type(data).model_fields.items():
        value = getattr(data, field)
        if field in ("folder", "source", "target") or value == info.default:
            continue
        if isinstance(value, BaseModel):
            value = hashlib.sha256(value.model_dump_json().encode()).hexdigest()[:6]
        name += as_name(field, value)
    return name
