"""The streaming curve as a picture."""

import io

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crodobo.evaluate.outcome import Outcome

BLUE, GREY, GREEN, ORANGE = "#1f5fbf", "#9aa4b2", "#2e8b57", "#d9822b"


def draw_curve(outcome: Outcome) -> bytes:
    """Online accuracy over the stream, with each query's own accuracy, pseudo-label share and agreement; PNG."""
    rows, result = outcome.record.rows, outcome.result()
    queries = [row.query for row in rows]
    figure = Figure(figsize=(8, 4.2), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.plot(
        queries,
        [100 * row.correct / row.samples for row in rows],
        ".",
        color=GREY,
        ms=5,
        label="accuracy of the query",
    )
    if any(row.kept is not None for row in rows):
        kept = [100 * row.kept if row.kept is not None else float("nan") for row in rows]
        axes.plot(queries, kept, color=ORANGE, lw=1, label="pseudo-labels kept")
    if any(row.agreement is not None for row in rows):
        agreement = [100 * row.agreement if row.agreement is not None else float("nan") for row in rows]
        axes.plot(queries, agreement, color=GREEN, lw=1, label="agreement of the learners")
    average = " class average" if result["metric"] == "class-average" else ""
    online = f"online accuracy ({100 * result['online_accuracy']:.1f} %)"
    axes.plot(queries, [100 * row.online_accuracy for row in rows], color=BLUE, lw=2.5, label=online)
    axes.axhline(
        100 * result["one_pass"],
        color=BLUE,
        lw=1,
        ls="--",
        label=f"one-pass{average}, the final model ({100 * result['one_pass']:.1f} %)",
    )
    axes.set(xlabel=f"query (of {outcome.settings.query_size} samples)", ylabel="%", ylim=(0, 102))
    axes.set_title(
        f"{result['method']}, {result['learners']} learner{'s' if result['learners'] > 1 else ''}, "
        f"on {result['benchmark']}: {outcome.benchmark.description}",
        fontsize=10,
    )
    axes.grid(alpha=0.25)
    axes.legend(loc="best", fontsize=8, framealpha=0.9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)


def png(figure: Figure) -> bytes:
    """The figure as a PNG without a date, so that the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
