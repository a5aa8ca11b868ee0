"""`crodobo config`: the settings a command would use, and where each comes from."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from crodobo.cli.given import Given
from crodobo.cli.help import MethodCommand, SettingsCommand
from crodobo.cli.options import COMMANDS, Command, Setting, command_group, takes
from crodobo.config import AS_PUBLISHED, DataSettings, MethodSettings


class ForRun(TyperGroup):
    """Without the name of a command, the settings are those of `run`."""

    default = "run"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


config = command_group(cls=ForRun, help="Print the settings that a command would use, and where each comes from.")
FILLER = "\0"  # in place of a missing path; no path contains it
Toml = Annotated[bool, typer.Option("--toml", help="Print a file that --config takes.")]


def _shower(name: str, command: Command) -> Callable[..., None]:
    def show(given: Given, toml: Toml = False) -> None:
        found = list(effective(given))
        if toml:
            print(as_toml(found))
            return
        rows = [("setting", "value", "from"), *((key, _shown(value), origin) for key, _, value, origin in found)]
        first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        for key, text, origin in rows:
            print(f"{key:{first}}  {text:{second}}  {origin}")

    show.__doc__ = f"The settings of `crodobo {name}`."
    return takes(command)(show)


for _name, _command in COMMANDS.items():
    config.command(_name, cls=MethodCommand if _command.one_method else SettingsCommand)(_shower(_name, _command))


def effective(given: Given) -> Iterator[tuple[str, tuple[str, ...], Any, str]]:
    """Each setting in force: its key in a file, the tables it lies in, its value, and where that came from."""
    chosen, settings = given.choose(), given.command.settings
    missing = [name for name in settings if settings[name].field.is_required() and name not in given.values]
    fillers: dict[str, Any] = {name: Path(FILLER) for name in missing}
    if given.command.no_default and not {"source", "benchmark"} & given.values.keys():
        missing += ["source", "benchmark"]
        fillers["data"] = DataSettings()
    session = given.session(replace(chosen, run=fillers | chosen.run), given.command.session)
    beside = given.of(given.command.beside) if given.command.beside else None

    def origin(setting: Setting) -> str:
        if setting.name in missing:
            return "(required)" if setting.field.is_required() else "(source or preset required)"
        if setting.name in given.origins:
            return given.origins[setting.name]
        if setting.name in chosen.preset or (chosen.preset and setting.path == ("data", "views")):
            return f"preset {chosen.benchmark}"
        return "plain" if session.options.plain and setting.name in AS_PUBLISHED else "default"

    for setting in settings.values():
        holder: Any = beside if setting.path == ("beside",) else session
        for part in setting.path if holder is session else ():
            holder = holder and getattr(holder, part)
        # No holder: the data of a built-in benchmark, the views of a preset.
        value, came_from = getattr(holder, setting.field_name, None), origin(setting)
        by_method = setting.spelling.get("by_method") and not given.command.one_method and came_from == "default"
        if by_method or setting.name in missing or FILLER in str(value):
            value = None
        path = () if setting.path == ("beside",) else setting.path
        yield setting.field_name if path else setting.keys[0], path, value, came_from
    for name in type(session.options).model_fields:
        if name not in MethodSettings.model_fields:
            yield name, ("options",), getattr(session.options, name), given.origins.get(name, "default")


def as_toml(found: list[tuple[str, tuple[str, ...], Any, str]]) -> str:
    """Settings as a file that `--config` takes."""
    tables: dict[tuple[str, ...], list[str]] = {(): []}
    for key, path, value, _ in found:
        if value is None:
            continue
        if hasattr(value, "model_dump"):
            for part, inside in value.model_dump(exclude_none=True).items():
                if isinstance(inside, dict):
                    rows = [f"{json.dumps(name, ensure_ascii=False)} = {_toml(each)}" for name, each in inside.items()]
                    tables.setdefault((*path, key, part), []).extend(rows)
                else:
                    tables.setdefault((*path, key), []).append(f"{part} = {_toml(inside)}")
        else:
            tables.setdefault(path, []).append(f"{key} = {_toml(value)}")
    blocks = [["[" + ".".join(path) + "]"] * bool(path) + rows for path, rows in tables.items() if rows]
    return "\n\n".join("\n".join(block) for block in blocks)


def _toml(value: Any) -> str:
    """A value in TOML.

    >>> _toml(("a", "é")), _toml(True), _toml(8e-4), _toml(Path("/x"))
    ('["a", "é"]', 'true', '0.0008', '"/x"')
    """
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)


def _shown(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.model_dump_json(exclude_defaults=True) if hasattr(value, "model_dump_json") else str(value)
