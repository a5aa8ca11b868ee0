"""Pictures of a comparison: online accuracy over the stream for all entries, and sensitivity to a setting."""

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from crodobo.evaluate.comparison.results import Results, Row, mean_and_deviation
from crodobo.evaluate.comparison.studies import Study
from crodobo.evaluate.report.curve import BLUE, GREEN, png

EMPHASIS = {"crodobo": BLUE, "source-only": GREEN}  # the two that the paper draws thick


def draw_streams(results: Results) -> bytes | None:
    """Online accuracy of every entry, query by query, mean over the seeds; PNG."""
    drawn = [row for row in results.rows if row.curves]
    if not drawn:
        return None
    drawn.sort(key=lambda row: mean_curve(row)[-1], reverse=True)
    figure = Figure(figsize=(9, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for number, row in enumerate(drawn):
        curve = mean_curve(row)
        thick = EMPHASIS.get(row.entry.key)
        axes.plot(
            range(1, len(curve) + 1),
            [100 * value for value in curve],
            color=thick or colours[number % len(colours)],
            lw=2.6 if thick else 1.2,
            ls=("-", "--", ":")[number // len(colours) % 3],
            zorder=3 if thick else 2,
            label=f"{row.entry.label}{'†' if row.keeps_target else ''} {100 * curve[-1]:.1f}",
        )
    axes.set(xlabel="query", ylabel="online accuracy, %")
    seeds = len(results.plan.seeds)
    axes.set_title(f"{results.plan.benchmark}, mean of {seeds} seed{'s' if seeds > 1 else ''}", fontsize=10)
    axes.grid(alpha=0.25)
    columns = 1 + (len(drawn) - 1) // 24
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False, ncols=columns)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)


def draw_sensitivity(results: Results, study: Study) -> bytes | None:
    """Online and one-pass accuracy against the values of a setting; PNG."""
    if study.layout != "sweep" or not all(row.online for row in results.rows):
        return None
    figure = Figure(figsize=(6, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    values = [float(row.entry.key) for row in results.rows]
    for name, key, style in (("online", "online_accuracy", "o-"), ("one-pass", "one_pass", "s--")):
        found = [mean_and_deviation([100 * result[key] for result in row.online.values()]) for row in results.rows]
        means = [mean or 0.0 for mean, _ in found]
        spread = [deviation or 0.0 for _, deviation in found]
        axes.errorbar(values, means, yerr=spread if any(spread) else None, fmt=style, capsize=3, label=name)
    axes.set(xlabel=results.rows[0].entry.label.split()[0], ylabel="accuracy, %", xticks=values)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)


def mean_curve(row: Row) -> list[float]:
    """The curve of an entry, averaged over its seeds as far as all of them go."""
    return [sum(values) / len(values) for values in zip(*row.curves.values(), strict=False)]
