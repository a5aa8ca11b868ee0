"""What all figures share. matplotlib is imported when a figure is drawn: it is part of the extra `benchmarks`."""

import importlib.util
import io
import re
from typing import TYPE_CHECKING

from crodobo.errors import CrodoboError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, GREY, GREEN, ORANGE, PURPLE = "#1f5fbf", "#9aa4b2", "#2e8b57", "#d9822b", "#8e44ad"


def check_report_packages() -> None:
    """Fail now, and not at the end of a long run, if the packages for figures and reports are missing."""
    missing = [name for name in ("jinja2", "matplotlib") if importlib.util.find_spec(name) is None]
    if missing:
        remedy = 'Install the missing packages with pip install "crodobo[benchmarks]".'
        raise CrodoboError(f"Figures and reports need {' and '.join(missing)}.", remedy)


def new_figure(width: float, height: float) -> "tuple[Figure, Axes]":
    """A figure of this size in inches, with a light grid and no frame at the top and on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def to_svg(figure: "Figure") -> str:
    """The figure as an SVG element for a page, whose colours it takes: transparent, with the page's ink and blue."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "crodobo"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = re.sub(r"<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)  # two figures of one page would have the same
    size = re.compile(r'(<svg[^>]*?) (?:width|height)="[^"]*pt"')
    svg = size.sub(r"\1", size.sub(r"\1", svg))
    return svg.replace("#000000", "currentColor").replace(BLUE, "var(--blue)")


def to_png(figure: "Figure") -> bytes:
    """The figure as a PNG without a date, so that the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
