"""The report of a run: one HTML page that contains everything."""

import base64
from typing import TYPE_CHECKING, Any

from crodobo.evaluate.outcome import Outcome

if TYPE_CHECKING:
    from jinja2 import Template


def render_run(outcome: Outcome, result: dict[str, Any], curve: bytes, exhibit: bytes | None) -> str:
    """The page: numbers, curve, classes, confusion matrix, the qualitative figure, protocol and settings."""
    settings = {name: value for name, value in result["settings"].items() if name != "options"}
    counts = outcome.record.confusion.counts.tolist()
    return load_template("run.html").render(
        result=result,
        description=outcome.benchmark.description,
        classes=outcome.benchmark.source.classes,
        class_samples=[sum(row) for row in counts],
        confusion=[[(count, count / max(1, sum(row))) for count in row] for row in counts],
        settings=settings | result["settings"]["options"],
        curve=data_url(curve),
        exhibit=data_url(exhibit) if exhibit else None,
    )


def load_template(name: str) -> "Template":
    """A template of the package, with the filter `percent`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("crodobo.evaluate.report", "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f} %"
    return environment.get_template(name)


def data_url(png: bytes) -> str:
    """A picture as an address that contains it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
