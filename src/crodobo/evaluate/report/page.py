"""The report of a run as one HTML page with everything inside it."""

import base64
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from crodobo.evaluate.outcome import Outcome


def render_page(outcome: Outcome, result: dict[str, Any], curve: bytes, exhibit: bytes | None) -> str:
    """The page: numbers, curve, classes, confusion matrix, the qualitative figure, protocol and settings."""
    settings = {name: value for name, value in result["settings"].items() if name != "options"}
    return (
        environment()
        .get_template("page.html")
        .render(
            result=result,
            description=outcome.benchmark.description,
            classes=outcome.benchmark.source.classes,
            class_samples=outcome.record.confusion.counts.sum(dim=1).tolist(),
            confusion=_shares(outcome),
            settings=settings | result["settings"]["options"],
            curve=inline(curve),
            exhibit=inline(exhibit) if exhibit else None,
        )
    )


def _shares(outcome: Outcome) -> list[list[tuple[int, float]]]:
    """The confusion matrix as counts with their share of the row."""
    counts = outcome.record.confusion.counts.tolist()
    return [[(count, count / max(1, sum(row))) for count in row] for row in counts]


def environment() -> Environment:
    """Where templates come from, and how numbers are shown in them."""
    found = Environment(
        loader=PackageLoader("crodobo.evaluate.report", "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["percent"] = lambda value: "–" if value is None else f"{100 * value:.1f} %"
    return found


def inline(picture: bytes) -> str:
    """A picture as an address that carries it."""
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"
