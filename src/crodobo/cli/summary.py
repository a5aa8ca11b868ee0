"""The result of a command in a few lines."""

from pathlib import Path
from typing import Any

from rich.table import Table

from crodobo.cli.console import SteadyConsole, files, percent
from crodobo.core.prediction import Estimate
from crodobo.inbox.walk import in_words

CLASSES = 12  # classes listed at most


def print_run(result: dict[str, Any], folder: Path) -> None:
    """The result of a run, and the path of its report."""
    metric = "class average" if result["metric"] == "class-average" else "accuracy"
    rows = {
        "online accuracy": _bold(percent(result["online_accuracy"])),
        f"one-pass {metric}": _bold(percent(result["one_pass"])),
        **_learning(result),
        "samples": f"{result['samples']} in {result['queries']} queries",
        "erasure": result["protocol"]["burned"],
        "time per query": f"{result['seconds_per_query']:.2f} s",
        "peak memory": f"{result['peak_rss_mb']:.0f} MB",
        "refused queries": len(result["refused_queries"]),
        **_protection(result),
    }
    _print(f"{result['method']} on {result['benchmark']}, seed {result['seed']}", rows, f"{folder}/report.html")


def print_adapted(summary: dict[str, Any]) -> None:
    """What happened to the files of an inbox, and the path of the predictions."""
    rows: dict[str, Any] = {}
    rows["predicted"] = f"{_bold(files(summary['predicted']))}, {'kept' if summary['kept_files'] else 'deleted'}"
    if summary["deleted_late"]:
        rows["deleted at the start"] = f"{files(summary['deleted_late'])}, predicted before the last stop"
    if summary["quarantined"]:
        rows["in quarantine"] = f"{files(summary['quarantined'])}, in {summary['settings']['quarantine']}"
    if summary["still_linked"]:
        linked = f"{files(summary['still_linked'])} of those deleted still exist under another name (a hard link)"
        rows["not gone"] = linked
    if left := summary["left"]:
        remedy = "; --recursive reads sub-folders" if "sub-folders" in left else ""
        rows["left in the inbox"] = f"{in_words(left)}{remedy}"
    if summary["classes"]:
        counts = [f"{name} {count}" for name, count in list(summary["classes"].items())[:CLASSES]]
        rows["classes"] = ", ".join(counts) + (" …" if len(summary["classes"]) > CLASSES else "")
        rows["mean confidence"] = percent(summary["mean_confidence"])
    rows |= _learning(summary) | _protection(summary)
    if summary["queries"]:
        rows["queries"] = f"{summary['queries']}, {summary['queries_in_all']} in all"
        rows["time per query"] = f"{summary['seconds_per_query']:.2f} s"
        rows["erasure"] = summary["burned"]
    rows["peak memory"] = f"{summary['peak_rss_mb']:.0f} MB"
    _print(summary["method"], rows, summary["predictions"])


def _learning(result: dict[str, Any]) -> dict[str, str]:
    names = {"pseudo-labels kept": "kept", "learners agree": "agreement"}
    rows = {title: percent(result[name]) for title, name in names.items() if result[name] is not None}
    estimate = result.get("estimate")
    return rows | {"estimated accuracy": f"{Estimate(**estimate)}, without labels" if estimate else "unknown"}


def _protection(result: dict[str, Any]) -> dict[str, int | str]:
    """How often the learners were protected, by the kind of protection."""
    return {
        "skipped updates": result["skipped_updates"],
        "predicted only": ", ".join(
            f"{number} ({reason})" for reason, number in result.get("predicted_only", {}).items()
        ),
        "restored weights": len(result["restored_weights"]),
    }


def _bold(text: str) -> str:
    return f"[bold]{text}[/bold]"


def _print(title: str, rows: dict[str, Any], path: str) -> None:
    """Print a table of names and values, without values that are 0, and a path."""
    console = SteadyConsole()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        if value:
            table.add_row(name, str(value))
    console.print(f"\n{title}", style="bold", highlight=False)
    console.print(table, highlight=False)
    console.print_line(path)
