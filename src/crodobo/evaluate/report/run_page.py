"""The report of a run: one HTML page that contains everything."""

from typing import TYPE_CHECKING, Any

from crodobo.evaluate.outcome import Outcome
from crodobo.evaluate.report.drawing import to_svg
from crodobo.evaluate.report.run_figures import draw_exhibit
from crodobo.evaluate.report.shown_settings import settings_in_effect
from crodobo.methods import Method

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure


def render_run(outcome: Outcome, method: Method, result: dict[str, Any], curve: "Figure") -> str:
    """The page: numbers, curve, classes, confusion matrix, the qualitative figure, protocol and settings."""
    exhibit = draw_exhibit(outcome)
    counts = outcome.record.confusion.counts.tolist()
    return load_template("run.html").render(
        result=result,
        description=outcome.benchmark.description,
        classes=outcome.benchmark.source.classes,
        class_samples=[sum(row) for row in counts],
        confusion=[[(count, count / max(1, sum(row))) for count in row] for row in counts],
        settings=settings_in_effect(outcome, method),
        curve=to_svg(curve),
        exhibit=to_svg(exhibit) if exhibit else None,
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
