"""The files of a comparison: tables, figures, and a page with sortable tables."""

import json
from typing import TYPE_CHECKING, Any

from crodobo.evaluate.comparison.plan import Plan
from crodobo.evaluate.comparison.results import Results
from crodobo.evaluate.comparison.studies import Study
from crodobo.evaluate.report.comparison_figures import draw_sensitivity, draw_streams
from crodobo.evaluate.report.comparison_tables import cost_table, main_table, study_table
from crodobo.evaluate.report.drawing import to_png, to_svg
from crodobo.evaluate.report.run_page import load_template
from crodobo.evaluate.report.shown_settings import in_words
from crodobo.evaluate.report.table import Table
from crodobo.storage.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_comparison(results: Results, study: Study | None = None) -> Table:
    """Write every file of a comparison or study to its folder, and return the main table."""
    folder = results.plan.folder
    table = study_table(results, study) if study else main_table(results)
    costs = cost_table(results)
    drawn = {"streaming.png": draw_streams(results)}
    if study:
        drawn["sensitivity.png"] = draw_sensitivity(results, study)
    figures = {name: figure for name, figure in drawn.items() if figure}
    for name, text in (
        ("table.csv", table.to_csv()),
        ("table.md", table.to_markdown()),
        ("table.tex", table.to_latex()),
        ("costs.csv", costs.to_csv()),
        ("costs.md", costs.to_markdown()),
        ("comparison.json", json.dumps(to_data(results, study), indent=2, ensure_ascii=False) + "\n"),
        ("report.html", render(results, study, [table, costs], figures)),
    ):
        write_atomically(folder / name, text)
    for name, figure in figures.items():
        write_atomically(folder / name, to_png(figure))
    return table


def to_data(results: Results, study: Study | None) -> dict[str, Any]:
    """All measurements, for programs. Accuracies are fractions."""
    plan = results.plan
    return {
        "study": study.name if study else None,
        "benchmark": plan.benchmark,
        "seeds": plan.seeds,
        "options": {name: str(value) for name, value in _settings(plan).items()},
        "protocol": results.protocol,
        "entries": {
            row.entry.key: {
                "label": row.entry.label,
                "method": row.entry.method,
                "options": row.entry.options | row.entry.stream,
                "keeps_target": row.keeps_target,
                "online": {seed: _numbers(result) for seed, result in row.online.items()},
                "offline": {seed: _numbers(result) for seed, result in row.offline.items()},
            }
            for row in results.rows
        },
        "problems": results.problems,
    }


def _numbers(result: dict[str, Any]) -> dict[str, Any]:
    names = ["online_accuracy", "metric", "one_pass", "one_pass_accuracy", "one_pass_class_average"]
    names += ["offline", "offline_accuracy", "offline_class_average", "per_class_accuracy"]
    names += ["seconds_per_query", "seconds", "peak_rss_mb", "kept", "agreement", "skipped_updates", "predicted_only"]
    return {name: result[name] for name in names if name in result}


def _settings(plan: Plan) -> dict[str, Any]:
    """The settings that all runs share. Data settings are listed one by one."""
    data = plan.run.get("data")
    shared = {name: value for name, value in (plan.options | plan.run).items() if name != "data"}
    return shared | (data.model_dump(mode="json", exclude_defaults=True) if data else {})


def render(results: Results, study: Study | None, tables: list[Table], figures: "dict[str, Figure]") -> str:
    """The page: sortable tables, figures, failures, protocol and settings."""
    plan = results.plan
    return load_template("comparison.html").render(
        title=f"Study {study.name} on {plan.benchmark}" if study else f"Methods compared on {plan.benchmark}",
        lead=f"{study.shows[0].upper()}{study.shows[1:]}." if study else "",
        tables=tables,
        figures={name: to_svg(figure) for name, figure in figures.items()},
        problems=results.problems,
        protocol=results.protocol,
        settings={"seeds": ", ".join(map(str, plan.seeds))} | in_words(_settings(plan)),
        runs=[
            (row.entry.label, [(seed, f"runs/{row.entry.key}-seed{seed}/report.html") for seed in row.online])
            for row in results.rows
            if row.online
        ],
    )
