"""The tables of a comparison or study, with the paper's figures beside the measured ones."""

import statistics

from crodobo.evaluate import paper
from crodobo.evaluate.comparison.results import EntryResults, Results, mean_and_deviation
from crodobo.evaluate.comparison.studies import Study
from crodobo.evaluate.report.table import Cell, Column, Row, Table

KEEPS_TARGET = "†"
COST_NOTE = (
    "Times are medians for one query (adapting, predicting, erasing), with one thread for each learner and several "
    "processes at a time. Compare them with each other, not with other machines. Memory is the peak of the process, "
    "including the libraries and the benchmark."
)


def main_table(results: Results) -> Table:
    """The paper's main table: classes, online, one-pass and offline for each method."""
    return rows_table(results, "main", "method", per_class=True)


def study_table(results: Results, study: Study) -> Table:
    """The table of a study, in the layout of the study."""
    if study.layout == "rows":
        return rows_table(results, study.name, "variant", per_class=study.per_class)
    return sweep_table(results, study) if study.layout == "sweep" else grid_table(results, study)


def rows_table(results: Results, study: str, head: str, per_class: bool) -> Table:
    """A row for each entry."""
    classes = results.classes if per_class else []
    has_offline = any(row.offline for row in results.rows)
    printed = paper.study_table(study, results.plan.benchmark)
    columns = [Column(f"class_{name}", name, "highest", detail=True) for name in classes]
    columns += [Column("online", "online", "highest"), Column("one_pass", "one-pass", "highest")]
    if has_offline:
        columns.append(Column("offline", "offline", "highest"))
    for name in ("online", "one_pass", "offline"):
        if any(getattr(figures, name) is not None for figures in printed.values()):
            columns.append(Column(f"paper_{name}", f"paper {name.replace('_', '-')}"))
    rows = []
    for runs in results.rows:
        cells = [_class_cell(runs, name) for name in classes]
        cells += [_cell(runs, "online_accuracy"), _cell(runs, "one_pass")]
        if has_offline:
            cells.append(_cell(runs, "offline", offline=True))
        figures = printed.get(runs.entry.key, paper.Figures())
        cells += [Cell(getattr(figures, column.key.removeprefix("paper_"))) for column in columns[len(cells) :]]
        rows.append(_row(runs, cells))
    return Table(_caption(results, study), head, columns, rows, _notes(results, study, bool(classes)))


def sweep_table(results: Results, study: Study) -> Table:
    """A column for each value of the setting, with online and one-pass as rows, then mean and variance."""
    printed = paper.study_table(study.name, results.plan.benchmark)
    columns = [Column(runs.entry.key, runs.entry.label, "highest") for runs in results.rows]
    columns += [Column("mean", "mean"), Column("variance", "variance", digits=2)]
    rows = []
    for name, key in (("online", "online_accuracy"), ("one-pass", "one_pass")):
        cells = [_cell(runs, key) for runs in results.rows]
        rows.append(Row(name, cells + _mean_and_variance(cells), competes=False))
    if printed:
        spread = paper.spread(study.name, results.plan.benchmark)
        for name, key in (("paper online", "online"), ("paper one-pass", "one_pass")):
            cells = [Cell(getattr(printed.get(runs.entry.key), key, None)) for runs in results.rows]
            mean, variance = (getattr(spread.get(each), key, None) for each in ("mean", "variance"))
            rows.append(Row(name, [*cells, Cell(mean), Cell(variance, digits=2)], competes=False))
    return Table(_caption(results, study.name), "metric", columns, rows, _notes(results, study.name, False))


def grid_table(results: Results, study: Study) -> Table:
    """Online accuracy, with a row for each method and a column for each stream."""
    printed = paper.study_table(study.name, results.plan.benchmark)
    names = list(dict.fromkeys(runs.entry.column for runs in results.rows))
    columns = [Column(name, name, "highest") for name in names]
    if study.spread:
        columns += [Column("mean", "mean", "highest"), Column("variance", "variance", digits=2)]
    rows = []
    for label in dict.fromkeys(runs.entry.row for runs in results.rows):
        group = {runs.entry.column: runs for runs in results.rows if runs.entry.row == label}
        cells = [_cell(group[name], "online_accuracy") for name in names]
        rows.append(Row(label, cells + (_mean_and_variance(cells) if study.spread else [])))
        if label in printed:
            cells = [Cell(value) for value in printed[label].orders]
            cells += [Cell(printed[label].online), Cell(printed[label].variance, digits=2)]
            rows.append(Row(f"{label}, paper", cells, competes=False))
    return Table(_caption(results, study.name), "method", columns, rows, _notes(results, study.name, False))


def cost_table(results: Results) -> Table:
    """Time and memory of each entry."""
    columns = [Column("seconds_per_query", "s / query", "lowest", digits=3), Column("peak_mb", "peak MB", "lowest", 0)]
    has_offline = any(row.offline for row in results.rows)
    if has_offline:
        columns.append(Column("offline_seconds", "offline s", "lowest", digits=0))
    rows = []
    for runs in results.rows:
        cells = [_number(runs, "seconds_per_query", 3), _number(runs, "peak_rss_mb", 0)]
        if has_offline:
            cells.append(_number(runs, "seconds", 0, offline=True))
        rows.append(_row(runs, cells))
    return Table("Costs of one process", "method", columns, rows, [COST_NOTE])


def _cell(runs: EntryResults, *keys: str, offline: bool = False) -> Cell:
    return Cell(*mean_and_deviation([100 * value for value in runs.values(*keys, offline=offline)]))


def _class_cell(runs: EntryResults, name: str) -> Cell:
    keys = ("per_class_accuracy", name)
    return _cell(runs, *keys, offline=not runs.values(*keys))


def _number(runs: EntryResults, key: str, digits: int, offline: bool = False) -> Cell:
    return Cell(mean_and_deviation(runs.values(key, offline=offline))[0], digits=digits)


def _mean_and_variance(cells: list[Cell]) -> list[Cell]:
    known = [cell.value for cell in cells if cell.value is not None]
    if len(known) < 2:
        return [Cell(None), Cell(None)]
    return [Cell(statistics.fmean(known)), Cell(statistics.variance(known), digits=2)]


def _row(runs: EntryResults, cells: list[Cell]) -> Row:
    return Row(runs.entry.label, cells, KEEPS_TARGET if runs.keeps_target else "", competes=not runs.keeps_target)


def _caption(results: Results, study: str) -> str:
    seeds = ", ".join(map(str, results.plan.seeds))
    what = "Accuracy" if study == "main" else f"Study {study}: accuracy"
    spread = ", mean ± standard deviation" if len(results.plan.seeds) > 1 else ""
    return f"{what} on {results.plan.benchmark} (%), seed{'s' if len(results.plan.seeds) > 1 else ''} {seeds}{spread}"


def _notes(results: Results, study: str, has_classes: bool) -> list[str]:
    notes = []
    if has_classes:
        offline_only = any(row.offline and not row.online for row in results.rows)
        notes.append(f"Classes are one-pass{'; offline for methods without an online form' if offline_only else ''}.")
    if any(row.keeps_target for row in results.rows):
        notes.append(f"{KEEPS_TARGET} keeps target data, so it does not compete: burning after reading forbids it.")
    if any(row.offline for row in results.rows):
        notes.append(f"Offline: {results.plan.epochs} epochs over both domains, then a score on the whole target.")
    counts = {row.entry.label: len(row.online or row.offline) for row in results.rows}
    if fewer := [f"{name} ({count})" for name, count in counts.items() if count < len(results.plan.seeds)]:
        notes.append(f"Run for fewer seeds: {', '.join(fewer)}.")
    if cite := paper.citation(results.plan.benchmark, study=study):
        notes.append(f"The paper's figures: {cite}; its backbone and protocol may differ from these runs.")
    return notes
