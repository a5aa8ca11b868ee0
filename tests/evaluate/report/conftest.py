"""Made-up results of a comparison."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from crodobo.evaluate.comparison import Entry, EntryResults, Plan, Results

Fabricate = Callable[..., Results]


def result(online: float, one_pass: float, classes: dict[str, float | None]) -> dict[str, Any]:
    """The parts of `result.json` that a table reads. Accuracies are fractions."""
    return {
        "online_accuracy": online,
        "metric": "accuracy",
        "one_pass": one_pass,
        "one_pass_accuracy": one_pass,
        "per_class_accuracy": classes,
        "seconds_per_query": 0.125,
        "peak_rss_mb": 400.0,
        "protocol": {"order": "adapt-then-predict", "stream": "random order"},
    }


@pytest.fixture
def fabricate(tmp_path: Path) -> Fabricate:
    """Results for entries, with percents by key and seed. Keys without percents have no results."""

    def make(
        entries: Sequence[Entry],
        online: dict[str, list[float]],
        *,
        benchmark: str = "glyphs",
        offline: dict[str, list[float]] | None = None,
        classes: Sequence[str] = ("plane", "bike"),
        problems: dict[str, str] | None = None,
        gain: float = 5.0,
    ) -> Results:
        seeds = tuple(range(max(map(len, [*online.values(), *(offline or {}).values()]), default=1)))
        plan = Plan(tmp_path, benchmark, tuple(entries), seeds, offline=bool(offline), epochs=3)
        rows = []
        for entry in plan.entries:
            row = EntryResults(entry, {}, {}, {})
            for seed, percent in enumerate(online.get(entry.key, [])):
                named: dict[str, float | None] = dict.fromkeys(classes, percent / 100)
                row.online[seed] = result(percent / 100, (percent + gain) / 100, named | {classes[-1]: None})
                row.curves[seed] = [percent / 200, percent / 100]
            for seed, percent in enumerate((offline or {}).get(entry.key, [])):
                accuracies: dict[str, Any] = {"offline": percent / 100, "offline_accuracy": percent / 100}
                accuracies |= {"seconds": 60.0, "peak_rss_mb": 500.0}
                row.offline[seed] = accuracies | {"per_class_accuracy": dict.fromkeys(classes, percent / 100)}
            rows.append(row)
        return Results(plan, rows, problems or {})

    return make
