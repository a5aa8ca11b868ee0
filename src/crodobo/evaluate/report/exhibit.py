"""The paper's qualitative figure: a query, the source samples that each learner met it with, the predictions.

For benchmarks alone: the samples come from the benchmark, which owns them, not from a query, which is gone.
"""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from crodobo.evaluate.outcome import Outcome
from crodobo.evaluate.report.curve import png

RIGHT, WRONG = "#2e8b57", "#c0392b"
TITLE, WIDTH, HEIGHT, SIDE = 1.2, 0.44, 0.66, 0.41  # inches: of a row's title, of a sample's place, of its longer side


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

    width, height = TITLE + WIDTH * count, HEIGHT * (len(bootstraps) + 1)
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))  # for all samples, in inches: axes for each take four times as long
    axes.set(xlim=(0, width), ylim=(height, 0), autoscale_on=False)
    axes.set_axis_off()
    for number, drawn in enumerate(bootstraps):
        names = [classes[label] for label in source.labels[drawn].tolist()]
        _row(axes, number, source.images[drawn], names, ["#555555"] * count, f"source, learner {number + 1}")
    names = [classes[label] if label >= 0 else "–" for label in predicted]
    colours = [RIGHT if guess == label else WRONG for guess, label in zip(predicted, labels, strict=True)]
    title = f"target, query {outcome.exhibit.query}"
    _row(axes, len(bootstraps), outcome.benchmark.images[targets], names, colours, title)
    return png(figure)


def _row(axes: Axes, number: int, images: Tensor, names: list[str], colours: list[str], title: str) -> None:
    down, across = (SIDE * side / max(images.shape[-2:]) for side in images.shape[-2:])
    top = HEIGHT * number + 0.02 + (SIDE - down) / 2
    size = min(8.0, 42 / max(map(len, names)))  # points; long names of classes stay apart
    axes.text(TITLE - 0.07, top + down / 2, title, ha="right", va="center", fontsize=8)
    for place, (image, name, colour) in enumerate(zip(images, names, colours, strict=True)):
        left = TITLE + WIDTH * place + (WIDTH - across) / 2 - 0.02
        picture = image.permute(1, 2, 0) if len(image) == 3 else image[0]
        axes.imshow(
            picture.numpy(),
            cmap="gray",
            vmin=0,
            vmax=255 if image.dtype == torch.uint8 else 1,
            extent=(left, left + across, top + down, top),
            aspect="auto",
        )
        axes.add_patch(Rectangle((left, top), across, down, fill=False, edgecolor=colour, lw=0.8))
        place_of_name = (left + across / 2, top + down + 0.02)
        axes.text(*place_of_name, name, ha="center", va="top", fontsize=size, color=colour, fontweight="bold")
