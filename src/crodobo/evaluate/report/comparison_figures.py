"""The figures of a comparison: online accuracy over the stream, and sensitivity to a setting."""

from typing import TYPE_CHECKING

from crodobo.evaluate.comparison.results import EntryResults, Results, mean_and_deviation
from crodobo.evaluate.comparison.studies import Study
from crodobo.evaluate.report.drawing import BLUE, GREEN, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EMPHASIS = {"crodobo": BLUE, "source-only": GREEN}  # the paper draws these two thick


def draw_streams(results: Results) -> "Figure | None":
    """Online accuracy of every entry, query by query, mean over the seeds."""
    curves = [(row, mean_curve(row)) for row in results.rows if row.curves]
    if not curves:
        return None
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    curves.sort(key=lambda pair: pair[1][-1], reverse=True)
    columns = 2 if max(len(row.entry.label) for row, _ in curves) < 30 else 1
    figure, axes = new_figure(5.8, 4 + 0.2 * len(curves) / columns)
    colours = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for number, (row, curve) in enumerate(curves):
        emphasis = EMPHASIS.get(row.entry.key)
        axes.plot(
            range(1, len(curve) + 1),
            [100 * value for value in curve],
            color=emphasis or colours[number % len(colours)],
            lw=2.6 if emphasis else 1.2,
            ls=("-", "--", ":")[number // len(colours) % 3],
            zorder=3 if emphasis else 2,
            label=f"{row.entry.label}{'†' if row.keeps_target else ''} {100 * curve[-1]:.1f}",
        )
    axes.set(xlabel="query", ylabel="online accuracy, %")
    seeds = len(results.plan.seeds)
    axes.set_title(f"{results.plan.benchmark}, mean of {seeds} seed{'s' if seeds > 1 else ''}", fontsize=10)
    figure.legend(loc="outside lower center", fontsize=9, frameon=False, ncols=columns)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def draw_sensitivity(results: Results, study: Study) -> "Figure | None":
    """Online and one-pass accuracy against the values of a setting."""
    if study.layout != "sweep" or not all(row.online for row in results.rows):
        return None
    figure, axes = new_figure(5.8, 4)
    values = [float(row.entry.key) for row in results.rows]
    for name, key, style in (("online", "online_accuracy", "o-"), ("one-pass", "one_pass", "s--")):
        pairs = [mean_and_deviation([100 * result[key] for result in row.online.values()]) for row in results.rows]
        means = [mean or 0.0 for mean, _ in pairs]
        deviations = [deviation or 0.0 for _, deviation in pairs]
        axes.errorbar(values, means, yerr=deviations if any(deviations) else None, fmt=style, capsize=3, label=name)
    axes.set(xlabel=results.rows[0].entry.label.split()[0], ylabel="accuracy, %", xticks=values)
    axes.legend(frameon=False)
    return figure


def mean_curve(row: EntryResults) -> list[float]:
    """The curve of an entry, averaged over its seeds. It ends where the shortest one ends."""
    return [sum(values) / len(values) for values in zip(*row.curves.values(), strict=False)]
