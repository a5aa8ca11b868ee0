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


def main_table(benchmark: str) -> dict[str, Figures]:
    """The methods that the paper compares on a benchmark. Empty if the paper does not use the benchmark.

    >>> figures = main_table("paper/visda-c")["crodobo"]
    >>> figures.online, figures.one_pass, figures.offline, figures.per_class["truck"]
    (79.4, 84.0, None, 30.7)
    >>> main_table("glyphs")
    {}
    """
    return study_table("main", benchmark)


def study_table(study: str, benchmark: str) -> dict[str, Figures]:
    """The rows of a study on a benchmark. Empty if the paper has none.

    >>> {name: figures.online for name, figures in study_table("bootstrap", "fashion").items()}
    {'single': 42.3, 'crodobo': 49.1}
    """
    return _figures(study, benchmark, "rows")


def spread(study: str, benchmark: str) -> dict[str, Figures]:
    """Mean and variance over the rows of a study, which the paper prints for `lambda` and `tau`.

    >>> {name: figures.online for name, figures in spread("lambda", "visda-c").items()}
    {'mean': 78.0, 'variance': 3.1}
    """
    return _figures(study, benchmark, "spread")


def citation(benchmark: str, *, study: str = "main") -> str:
    """The number of a table in the paper. Empty if the paper has none.

    >>> citation("visda-c"), citation("visda-c-hrnet", study="continual")
    ('Table 1, ResNet-101', 'Table 7 of the supplementary material, HR-Net')
    """
    return str(_table(study, benchmark).get("cite", ""))


@cache
def _paper() -> dict[str, Any]:
    return tomllib.loads(files("crodobo.evaluate").joinpath("paper.toml").read_text(encoding="utf-8"))


def _table(study: str, benchmark: str) -> dict[str, Any]:
    table: dict[str, Any] = _paper().get(study, {}).get(benchmark.removeprefix("paper/"), {})
    return table


def _figures(study: str, benchmark: str, part: str) -> dict[str, Figures]:
    table = _table(study, benchmark)
    return {name: _row(row, table.get("classes", [])) for name, row in table.get(part, {}).items()}


def _row(row: dict[str, Any], classes: list[str]) -> Figures:
    by_class = {name: dict(zip(classes, row[name], strict=True)) for name in row if name.endswith("per_class")}
    return Figures(**(row | by_class | {"orders": tuple(row.get("orders", ()))}))
