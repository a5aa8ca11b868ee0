"""The figures of a run: the accuracy over the stream, and one query with its predictions."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crodobo.evaluate.outcome import Outcome
from crodobo.evaluate.report.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIGHT, WRONG, NEUTRAL = GREEN, "#c0392b", "#7a828c"
SHOWN = 24  # target samples in the figure of a query
TITLE, WIDTH, HEIGHT, SIDE = 1.2, 0.44, 0.66, 0.41  # inches: title of a row, cell of a sample, longer side of an image


def draw_curve(outcome: Outcome) -> "Figure":
    """Online accuracy over the stream, with the accuracy, kept pseudo-labels and agreement of each query."""
    from matplotlib.ticker import MaxNLocator

    rows, result = outcome.record.rows, outcome.result()
    queries = [row.query for row in rows]
    figure, axes = new_figure(5.8, 4.6)
    of_query = [100 * row.correct / row.samples for row in rows]
    axes.plot(queries, of_query, ".", color=GREY, ms=5, label="accuracy of the query")
    lines = {"kept": (ORANGE, "pseudo-labels kept"), "agreement": (GREEN, "agreement of the learners")}
    lines["estimate"] = (PURPLE, "accuracy estimated without labels")
    for name, (colour, label) in lines.items():
        values = [getattr(row, name) for row in rows]
        if any(value is not None for value in values):
            percents = [float("nan") if value is None else 100 * value for value in values]
            axes.plot(queries, percents, color=colour, lw=1, label=label)
    average = " class average" if result["metric"] == "class-average" else ""
    online = f"online accuracy ({100 * result['online_accuracy']:.1f} %)"
    axes.plot(queries, [100 * row.online_accuracy for row in rows], color=BLUE, lw=2.5, label=online)
    final = 100 * result["one_pass"]
    axes.axhline(final, color=BLUE, lw=1, ls="--", label=f"one-pass{average}, the final model ({final:.1f} %)")
    axes.set(xlabel=f"query (of {outcome.settings.query_size} samples)", ylabel="%", ylim=(0, 102))
    learners = f"{result['learners']} learner{'s' if result['learners'] > 1 else ''}"
    title = f"{result['method']}, {learners}, on {result['benchmark']}: {outcome.benchmark.description}"
    axes.set_title(title, fontsize=10, wrap=True)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, ncols=2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_exhibit(outcome: Outcome) -> "Figure | None":
    """The paper's qualitative figure: source samples, a row for each learner, then target samples and predictions.

    Only for benchmarks. The images come from the benchmark, which keeps them; the query itself is erased.
    """
    if outcome.exhibit is None:
        return None
    from matplotlib.figure import Figure

    source, classes = outcome.benchmark.source, outcome.benchmark.source.classes
    bootstraps = [torch.tensor(drawn) for drawn in outcome.exhibit.bootstrap]
    first = (outcome.exhibit.query - 1) * outcome.settings.query_size
    count = min(SHOWN, next(row.samples for row in outcome.record.rows if row.query == outcome.exhibit.query))
    targets = outcome.streamed[first : first + count]
    predicted = outcome.record.predicted[first : first + count]
    labels = outcome.benchmark.labels[targets].tolist()

    width, height = TITLE + WIDTH * count, HEIGHT * (len(bootstraps) + 1)
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))  # one for all samples, in inches: axes for each sample take four times as long
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    axes.set_axis_off()
    for number, drawn in enumerate(bootstraps):
        names = [classes[label] for label in source.labels[drawn].tolist()]
        title = f"source, learner {number + 1}"
        _draw_row(axes, number, source.images[drawn], names, [NEUTRAL] * len(names), title)
    names = [classes[label] if label >= 0 else "–" for label in predicted]
    colours = [RIGHT if guess == label else WRONG for guess, label in zip(predicted, labels, strict=True)]
    title = f"target, query {outcome.exhibit.query}"
    _draw_row(axes, len(bootstraps), outcome.benchmark.images[targets], names, colours, title)
    return figure


def _draw_row(axes: "Axes", number: int, images: Tensor, names: list[str], colours: list[str], title: str) -> None:
    from matplotlib.patches import Rectangle

    height, width = (SIDE * side / max(images.shape[-2:]) for side in images.shape[-2:])
    top = HEIGHT * number + 0.02 + (SIDE - height) / 2
    font_size = min(8.0, 42 / max(map(len, names)))  # points: long class names must not overlap
    axes.text(TITLE - 0.07, top + height / 2, title, ha="right", va="center", fontsize=8)
    for column, (image, name, colour) in enumerate(zip(images, names, colours, strict=True)):
        left = TITLE + WIDTH * column + (WIDTH - width) / 2 - 0.02
        axes.imshow(
            (image.permute(1, 2, 0) if len(image) == 3 else image[0]).numpy(),
            cmap="gray",
            vmin=0,
            vmax=255 if image.dtype == torch.uint8 else 1,
            extent=(left, left + width, top + height, top),
            aspect="auto",
        )
        axes.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor=colour, lw=0.8))
        centre, below = left + width / 2, top + height + 0.02
        axes.text(centre, below, name, ha="center", va="top", fontsize=font_size, color=colour, fontweight="bold")
