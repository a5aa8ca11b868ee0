"""From given values to settings: a preset fills in what is not given."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crodobo.cli.options import IMAGES, RUN, SETTINGS
from crodobo.config import BUILT_IN, DataSettings, MethodSettings, nearest
from crodobo.errors import BadSettings

OWN_SIZE = 224  # pixels of the user's own images, for a backbone other than the small one


@dataclass(frozen=True)
class Chosen:
    """What the settings of a command come to: the benchmark, settings of the method and of the run.

    `preset` names the settings that the preset decided.
    """

    benchmark: str
    options: dict[str, Any]
    run: dict[str, Any]
    notes: tuple[str, ...] = ()
    preset: frozenset[str] = frozenset()


def choose(values: dict[str, Any], sides: Sequence[str] = ("source", "target")) -> Chosen:
    """Sort values into those of the run and of the method; what is not given is the preset's.

    `sides` are the paths that the user's own images need.

    >>> choose({"benchmark": "glyphs", "lr": "0.1", "queries": 5, "seeds": "0"})
    Chosen(benchmark='glyphs', options={'lr': 0.1}, run={'queries': 5}, notes=(), preset=frozenset())
    """
    from crodobo.data.classes import read_classes
    from crodobo.data.presets import get_preset, is_preset

    run, data, views = (_at(values, path) for path in ((), ("data",), ("data", "views")))
    options = _typed(_at(values, ("options",)) | {name: values[name] for name in values if name not in SETTINGS})
    if isinstance(data.get("classes"), Path):
        data["classes"] = read_classes(data["classes"])
    if "source_columns" in data:
        data.setdefault("target_columns", data["source_columns"])
    own = {name: values[name] for name in IMAGES if name in values}
    benchmark = run.pop("benchmark") if "benchmark" in run else own_name(own, sides)
    notes, usual = [], Chosen(benchmark, {}, {})
    if is_preset(benchmark):
        preset = get_preset(benchmark)
        suited = dict(preset.options)
        if "backbone" in options or "weights" in options:
            suited.pop("pretrained", None)  # the preset's weights are of the preset's network
        random = preset.options.get("pretrained") and not (suited | options).get("pretrained", False)
        if random and "weights" not in options and "warmup" not in options:
            suited.pop("warmup", None)
            notes.append(
                f"Starting from random weights, so the warm-up is {RUN.settings['warmup'].default} steps; --pretrained "
                "or --weights starts from better ones."
            )
        names = (suited | preset.run | preset.data).keys() - values.keys()
        usual = Chosen(benchmark, suited, preset.run, preset=frozenset(names))
        data = preset.data | data
        views = preset.views.model_dump() | views if views else {}
    else:
        if not set(sides) <= data.keys():
            check_benchmark(benchmark)
        if data and options.get("backbone", "small") not in BUILT_IN:
            run.setdefault("image_size", OWN_SIZE)
    if data or views or usual.run:
        run["data"] = DataSettings.of(**data, **({"views": views} if views else {}))
    return replace(usual, options=usual.options | options, run=usual.run | run, notes=tuple(notes))


def _at(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The values of the settings that are nested at a path, by their field's name."""
    known = ((SETTINGS[name], value) for name, value in values.items() if name in SETTINGS)
    return {setting.field_name: value for setting, value in known if setting.path == path}


def _typed(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the method with those that all methods share as numbers and paths instead of text."""
    shared = {name: value for name, value in options.items() if name in MethodSettings.model_fields}
    checked = MethodSettings.of(**shared)
    return options | {name: getattr(checked, name) for name in shared}


def own_name(data: dict[str, Any], sides: Sequence[str] = ("source", "target")) -> str:
    """The name of a benchmark that is given by its paths, or of the built-in one.

    >>> own_name({"source": Path("data/public"), "target": Path("private.csv")})
    'public-to-private'
    >>> own_name({})
    'glyphs'
    """
    if not data:
        return str(RUN.settings["benchmark"].default)
    if "folder" in data:
        remedy = f"Name it, or give your own images as {' and '.join(sides)}."
        problem = "A data folder belongs to a preset, and no preset is named."
        raise BadSettings(problem, remedy, settings=("benchmark", *sides))
    if missing := [side for side in sides if side not in data]:
        needed = " and ".join(f"a {side}" for side in sides)
        about = sides if set(sides) & data.keys() else (*data, *sides)
        raise BadSettings(f"There is no {missing[0]}.", f"Your own images need {needed}.", settings=tuple(about))
    paths = [Path(data[side]).expanduser().resolve() for side in sides]
    return "-to-".join((path.name if path.is_dir() else path.name.split(".")[0]) or "root" for path in paths)


def check_benchmark(name: str) -> None:
    """Refuse a mistyped benchmark, and suggest the nearest; a name without a near match is refused on loading."""
    from crodobo.data import REGISTRY
    from crodobo.data.presets import preset_names

    if name not in REGISTRY and (near := nearest(name, [*REGISTRY, *preset_names()])):
        raise BadSettings(f"There is no benchmark {name!r}.", f"Did you mean {near}?", settings=("benchmark",))
