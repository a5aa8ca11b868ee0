"""`crodobo methods`: which methods there are, and the settings of one."""

import inspect
import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from crodobo.methods import Method


def methods(
    name: Annotated[str | None, typer.Argument(help="Show the settings that only this method has.")] = None,
) -> None:
    """List the methods and what each does, or the settings of one."""
    from rich.console import Console
    from rich.table import Table

    from crodobo.methods import REGISTRY, get_method

    if name:
        _print_one(get_method(name))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("method", "protocols", "keeps target", "what it does"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "method")
    for each, method in REGISTRY.items():
        table.add_row(each, ", ".join(method.protocols), "yes" if method.keeps_target else "", _what(method))
    Console().print(table, highlight=False)


def _what(method: "type[Method]") -> str:
    """The first paragraph of a method's docstring."""
    return " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split())


def _documented(method: "type[Method]") -> dict[str, str]:
    """The parameters in the docstrings of a method and its base classes."""
    docstrings = "\n\n".join(inspect.cleandoc(kind.__doc__ or "") for kind in reversed(method.__mro__))
    found = re.findall(r"^(\w+)\n((?: {4}.+\n?)+)", docstrings, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _print_one(method: "type[Method]") -> None:
    from rich.console import Console
    from rich.table import Table

    from crodobo.cli.options import settings_of
    from crodobo.config import MethodSettings

    table = Table("option", "default", "", box=None, padding=(0, 2, 0, 0))
    documented = _documented(method)
    for setting in settings_of(method.Settings):
        usual = MethodSettings.model_fields.get(setting.field_name)
        if usual is None or usual.default != setting.default:
            about = usual.description if usual else documented.get(setting.field_name)
            table.add_row(setting.spellings[0], "–" if setting.default is None else str(setting.default), about)
    console = Console()
    console.print(f"{method.name}: {_what(method)}\n", highlight=False, markup=False)
    console.print(table if table.row_count else "It has the settings that all methods share.", highlight=False)
