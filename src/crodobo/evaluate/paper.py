"""The figures that the paper prints, to show beside measured ones. The data is in `paper.toml`."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Figures:
    """A row of a table, in percent as printed. Values that the paper does not give are None or empty.

    `per_class` is the one-pass accuracy of each class, by the paper's short class names. In the study `randomness`,
    `orders` are the online accuracies of the five orders, `online` is their mean and `variance` their variance.
    """

    online: float | None = None
    one_pass: float | None = None
    offline: float | None = None
    per_class: dict[str, float] = field(default_factory=dict)
    orders: tuple[float, ...] = ()
    offline_per_class: dict[str, float] = field(default_factory=dict)
    variance: float | None = None


def study_table(study: str, benchmark: str) -> dict[str, Figures]:
    """The rows of a study on a benchmark, or of the study `main`: the comparison of methods. Empty if there are none.

    >>> figures = study_table("main", "paper/visda-c")["crodobo"]
    >>> figures.online, figures.one_pass, figures.offline, figures.per_class["truck"]
    (79.4, 84.0, None, 30.7)
    """
    return _figures(study, benchmark, "rows")


def spread(study: str, benchmark: str) -> dict[str, Figures]:
    """Mean and variance over the rows of a study, which the paper prints for `lambda` and `tau`."""
    return _figures(study, benchmark, "spread")


def citation(benchmark: str, *, study: str = "main") -> str:
    """The number of a table in the paper. Empty if the paper has none."""
    return str(_table(study, benchmark).get("cite", ""))


@cache
def _paper() -> dict[str, Any]:
    return tomllib.loads(files("crodobo.evaluate").joinpath("paper.toml").read_text(encoding="utf-8"))


def _table(study: str, benchmark: str) -> dict[str, Any]:
    table: dict[str, Any] = _paper().get(study, {}).get(benchmark.removeprefix("paper/"), {})
    return table


def _figures(study: str, benchmark: str, part: str) -> dict[str, Figures]:
    table, found = _table(study, benchmark), {}
    for name, row in table.get(part, {}).items():
        lists = {key: dict(zip(table["classes"], row[key], strict=True)) for key in row if key.endswith("per_class")}
        found[name] = Figures(**row | lists | {"orders": tuple(row.get("orders", ()))})
    return found
