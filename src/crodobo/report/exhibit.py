"""The paper's qualitative figure: a query, the source samples that each learner met it with, the predictions.

For benchmarks alone: the samples come from the benchmark, which owns them, not from a query, which is gone.
"""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from crodobo.outcome import Outcome
from crodobo.report.curve import png

RIGHT, WRONG = "#2e8b57", "#c0392b"


def draw_exhibit(outcome: Outcome) -> bytes | None:
    """Bootstrapped source samples, a row a learner; then target samples and what they were taken for. PNG."""
    if outcome.exhibit is None:
        return None
    source, classes = outcome.benchmark.source, outcome.benchmark.source.classes
    bootstraps = [torch.tensor(drawn) for drawn in outcome.exhibit.bootstrap]
    first = (outcome.exhibit.query - 1) * outcome.settings.query_size
    samples = next(row.samples for row in outcome.record.rows if row.query == outcome.exhibit.query)
    count = min(24, samples)
    targets = outcome.streamed[first : first + count]
    predicted = outcome.record.predicted[first : first + count]
    labels = outcome.benchmark.labels[targets].tolist()

    figure = Figure(figsize=(0.44 * count + 1.2, 0.66 * (len(bootstraps) + 1)), dpi=110)
    grid = figure.subplots(len(bootstraps) + 1, count, squeeze=False)
    for number, drawn in enumerate(bootstraps):
        names = [classes[label] for label in source.labels[drawn].tolist()]
        _row(grid[number], source.images[drawn], names, ["#555555"] * count, f"source, learner {number + 1}")
    names = [classes[label] if label >= 0 else "–" for label in predicted]
    colours = [RIGHT if guess == label else WRONG for guess, label in zip(predicted, labels, strict=True)]
    _row(grid[-1], outcome.benchmark.images[targets], names, colours, f"target, query {outcome.exhibit.query}")
    figure.subplots_adjust(
        left=1.15 / (0.44 * count + 1.2), right=0.995, top=0.99, bottom=0.08, wspace=0.08, hspace=0.45
    )
    return png(figure)


def _row(row: list[Axes], images: Tensor, names: list[str], colours: list[str], title: str) -> None:
    for axes, image, name, colour in zip(row, images, names, colours, strict=True):
        picture = image.permute(1, 2, 0) if len(image) == 3 else image[0]
        axes.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=255 if image.dtype == torch.uint8 else 1)
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel(name, fontsize=8, color=colour, fontweight="bold", labelpad=1)
        for spine in axes.spines.values():
            spine.set_color(colour)
    row[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
