"""What a comparison has found: the results of its runs, by entry and seed."""

import csv
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from crodobo.errors import CrodoboError
from crodobo.evaluate.comparison.plan import Entry, Plan
from crodobo.evaluate.run import identity_of
from crodobo.methods import REGISTRY, get_method


@dataclass(frozen=True)
class Row:
    """All runs of one entry."""

    entry: Entry
    online: dict[int, dict[str, Any]]
    offline: dict[int, dict[str, Any]]
    curves: dict[int, list[float]]

    @property
    def keeps_target(self) -> bool:
        return get_method(self.entry.method).keeps_target

    def values(self, read: Callable[[dict[str, Any]], float | None], offline: bool = False) -> list[float]:
        """A number of every run that has it."""
        results = (self.offline if offline else self.online).values()
        return [value for result in results if (value := read(result)) is not None]


@dataclass(frozen=True)
class Results:
    """A comparison that was carried out, or as much of it as there is."""

    plan: Plan
    rows: list[Row]
    problems: dict[str, str]

    @property
    def classes(self) -> list[str]:
        """The classes' names."""
        for row in self.rows:
            for result in (row.online | row.offline).values():
                return list(result["per_class_accuracy"])
        return []

    @property
    def protocol(self) -> dict[str, str]:
        """How the numbers came about; the same for all runs but for what an entry sets itself."""
        for row in self.rows:
            for result in row.online.values():
                protocol: dict[str, str] = result["protocol"]
                return protocol
        return {}

    def row(self, key: str) -> Row:
        """The row of an entry."""
        return next(row for row in self.rows if row.entry.key == key)


def collect(plan: Plan, problems: dict[str, str]) -> Results:
    """Read what the runs have left behind."""
    rows = []
    for entry in plan.entries:
        row = Row(entry, {}, {}, {})
        for task in plan.tasks:
            if task.name != entry.key or task.title in problems:
                continue
            if task.kind == "online" and (task.folder / "result.json").exists():
                row.online[task.seed] = json.loads((task.folder / "result.json").read_text())
                with (task.folder / "curve.csv").open(newline="") as file:
                    row.curves[task.seed] = [float(line["online_accuracy"]) for line in csv.DictReader(file)]
            elif task.kind == "offline" and (task.folder / "offline.json").exists():
                row.offline[task.seed] = json.loads((task.folder / "offline.json").read_text())
        rows.append(row)
    return Results(plan, rows, problems)


def widen(plan: Plan) -> Plan:
    """The plan with all methods and seeds that were run in its folder before, under the same settings."""
    entries = {entry.key: entry for entry in plan.entries}
    seeds = set(plan.seeds)
    for path in [*plan.folder.glob("runs/*/result.json"), *plan.folder.glob("offline/*/offline.json")]:
        try:
            result = json.loads(path.read_text())
            name, seed = result["method"], int(result["seed"])
            entry = entries.get(name) or Entry(name, name, name)
            same = identity_of(result["settings"]) == identity_of(plan.settings(entry, seed).model_dump(mode="json"))
        except (OSError, ValueError, KeyError, TypeError, CrodoboError):
            continue
        if same and path.parent.name == f"{name}-seed{seed}":
            entries[name] = entry
            seeds.add(seed)
    ordered = sorted(entries.values(), key=lambda entry: list(REGISTRY).index(entry.method))
    return replace(plan, entries=tuple(ordered), seeds=tuple(sorted(seeds)), offline=True)


def mean_and_deviation(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation; of one value there is no deviation.

    >>> mean_and_deviation([1.0, 3.0])
    (2.0, 1.414...)
    >>> mean_and_deviation([1.0]), mean_and_deviation([])
    ((1.0, None), (None, None))
    """
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
