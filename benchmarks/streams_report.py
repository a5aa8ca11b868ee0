"""The table and the picture of the matrix of streams, from its finished cells."""

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crodobo.evaluate.report.drawing import BLUE, to_png
from crodobo.storage.files import write_atomically
from streams_cells import DEFAULT, METHODS, ORDERS, PAIRS, REFERENCES, SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 2.0  # points that the default may be below the best reference
UNRELIABLE = 7.0  # an estimate that is off by more points on average is worth nothing
WORSE = "▼"
# Colours that colour-blind readers can tell apart (Okabe and Ito), each with a marker of its own.
STYLES: dict[str, dict[str, Any]] = {
    "no-adaptation": {"color": "#333333", "marker": "s", "lw": 1.2},
    "bn-statistics": {"color": "#E69F00", "marker": "^", "lw": 1.2},
    "source-only": {"color": "#009E73", "marker": "D", "lw": 1.2},
    "tent": {"color": "#CC79A7", "marker": "v", "lw": 1.2, "ls": ":"},
    "single": {"color": "#D55E00", "marker": "X", "lw": 1.2, "ls": ":"},
    "crodobo-plain": {
        "color": "#56B4E9",
        "marker": "o",
        "lw": 1.6,
        "ls": "--",
        "markerfacecolor": "white",
        "zorder": 5,
    },
    "crodobo": {"color": BLUE, "marker": "o", "lw": 2.6, "markersize": 6.5, "zorder": 4},
}


@dataclass(frozen=True)
class Stream:
    """A row of the table: all methods and seeds on one stream. Accuracies in %."""

    pair: str
    size: int
    order: str
    records: dict[str, dict[int, dict[str, Any]]]  # by method and seed

    def mean(self, method: str, name: str = "online", seeds: set[int] | None = None) -> float | None:
        """The mean of a number over the seeds that have it."""
        found = [record[name] for seed, record in self.records[method].items() if seeds is None or seed in seeds]
        known = [100 * value for value in found if value is not None]
        return statistics.fmean(known) if known else None

    @property
    def lead(self) -> float | None:
        """How far the default is above the best reference, over the seeds that all of them have; None if unknown."""
        seeds = set.intersection(*(set(self.records[name]) for name in (DEFAULT, *REFERENCES)))
        if not seeds:
            return None
        own, *others = (self.mean(name, seeds=seeds) or 0.0 for name in (DEFAULT, *REFERENCES))
        return own - max(others)

    @property
    def best_reference(self) -> float | None:
        known = [mean for name in REFERENCES if (mean := self.mean(name)) is not None]
        return max(known) if known else None


def write_report(records: list[dict[str, Any]], folder: Path) -> list[Path]:
    """Write the table and the picture to the folder."""
    streams = to_streams(records)
    table, picture = folder / "table.md", folder / "streams.png"
    write_atomically(table, to_markdown(streams))
    write_atomically(picture, draw(streams))
    return [table, picture]


def to_streams(records: list[dict[str, Any]]) -> list[Stream]:
    """The streams that have a cell, in the order of the table."""
    streams = []
    for pair in PAIRS:
        for size in SIZES:
            for order in ORDERS:
                own = [each for each in records if (each["pair"], each["size"], each["order"]) == (pair, size, order)]
                by_method = {name: {each["seed"]: each for each in own if each["method"] == name} for name in METHODS}
                if own:
                    streams.append(Stream(pair, size, order, by_method))
    return streams


def to_markdown(streams: list[Stream]) -> str:
    """The table: a row for each stream, a column for each method."""
    shown = [name for name in METHODS if any(stream.records[name] for stream in streams)]
    estimated = any(stream.mean(DEFAULT, "estimate") is not None for stream in streams)
    heads = ["pair", "query", "order", *(METHODS[name].title for name in shown)]
    heads += ["estimate", "off by"] if estimated else []
    rows = [heads, ["---", "---:", "---", *["---:"] * (len(heads) - 3)]]
    for stream in streams:
        row = [PAIRS[stream.pair].title, str(stream.size), stream.order]
        row += [judged(stream) if name == DEFAULT else text(stream.mean(name)) for name in shown]
        if estimated:
            row += [text(stream.mean(DEFAULT, "estimate")), text(stream.mean(DEFAULT, "estimate_error"))]
        rows.append(row)
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join([f"**{caption(streams)}**", body, *notes(streams, estimated)]) + "\n"


def caption(streams: list[Stream]) -> str:
    seeds = sorted({seed for stream in streams for runs in stream.records.values() for seed in runs})
    which = f"mean of seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"Online accuracy on each stream (%), {which}"


def notes(streams: list[Stream], estimated: bool) -> list[str]:
    """What the marks mean, and what is missing."""
    found = []
    if leads := [stream.lead for stream in streams if stream.lead is not None]:
        worse = sum(lead < -TOLERANCE for lead in leads)
        found.append(
            f"Bold: at least the best of {', '.join(REFERENCES[:-1])} and {REFERENCES[-1]}, less {TOLERANCE:g} points. "
            f"{WORSE}: less than that ({worse} of {len(leads)} streams)."
        )
    if estimated:
        found.append(
            f"Estimate: {METHODS[DEFAULT].title}'s own estimate of its accuracy, without labels. Off by: how far it is "
            f"from the truth on average, over windows of at least 64 samples; above {UNRELIABLE:g} it is not reliable."
        )
    counts = [len(runs) for stream in streams for runs in stream.records.values() if runs]
    if fewer := sum(count < max(counts) for count in counts):
        found.append(f"{fewer} of {len(counts)} values are from fewer seeds.")
    return found


def judged(stream: Stream) -> str:
    """The default's accuracy with the mark that it earns."""
    shown, lead = text(stream.mean(DEFAULT)), stream.lead
    if lead is None:
        return shown
    return f"{shown} {WORSE}" if lead < -TOLERANCE else f"**{shown}**"


def text(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def draw(streams: list[Stream]) -> bytes:
    """One panel for each pair and query size, with the orders from left to right. PNG."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys((stream.pair, stream.size) for stream in streams))
    columns = min(3, len(panels) + 1)
    rows = -(-(len(panels) + 1) // columns)
    figure = Figure(figsize=(3.4 * columns, 2.9 * rows), dpi=150, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for axes, panel in zip(grid.flat, panels, strict=False):
        handles |= draw_panel(axes, [stream for stream in streams if (stream.pair, stream.size) == panel])
        highest = max(stream.mean(name) or 0 for stream in streams if stream.pair == panel[0] for name in METHODS)
        axes.set_ylim(0, min(100, 10 * math.ceil((highest + 3) / 10)))  # one scale for all panels of a pair
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for row in grid:
        row[0].set_ylabel("online accuracy, %")
    known = [name for name in (*STYLES, "best reference") if name in handles]
    titles = [METHODS[name].title if name in METHODS else "best of the first three" for name in known]
    legend = grid.flat[len(panels)]
    legend.legend([handles[name] for name in known], titles, loc="center", fontsize=10, frameon=False)
    return to_png(figure)


def draw_panel(axes: "Axes", streams: list[Stream]) -> dict[str, Any]:
    """Draw a pair with one query size, and return what the legend shows."""
    handles: dict[str, Any] = {}
    places = [ORDERS.index(stream.order) for stream in streams]
    tops = [stream.best_reference or 0.0 for stream in streams]
    if any(tops):
        handles["best reference"] = axes.bar(places, tops, width=0.8, color="#dfe4ec", zorder=1)
    for name, style in STYLES.items():
        means = [stream.mean(name) for stream in streams]
        points = [(place, mean) for place, mean in zip(places, means, strict=True) if mean is not None]
        if points:
            (handles[name],) = axes.plot(*zip(*points, strict=True), **{"markersize": 5, "zorder": 3} | style)
    queries = "single images" if streams[0].size == 1 else f"queries of {streams[0].size}"
    axes.set_title(f"{PAIRS[streams[0].pair].title}, {queries}", fontsize=10)
    labels = [order.replace("dirichlet", "dirichlet\n") for order in ORDERS]
    axes.set_xticks(range(len(ORDERS)), labels, fontsize=8)
    axes.set_xlim(-0.5, len(ORDERS) - 0.5)
    axes.tick_params(axis="y", labelsize=8)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return handles
