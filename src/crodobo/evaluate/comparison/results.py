"""The results of a comparison, by entry and seed."""

import csv
import json
import statistics
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any

from crodobo.errors import CrodoboError
from crodobo.evaluate.comparison.plan import Entry, Plan
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import REGISTRY, get_method


@dataclass(frozen=True)
class EntryResults:
    """The results of all runs of an entry, by seed."""

    entry: Entry
    online: dict[int, dict[str, Any]]
    offline: dict[int, dict[str, Any]]
    curves: dict[int, list[float]]

    @property
    def keeps_target(self) -> bool:
        return get_method(self.entry.method).keeps_target

    def values(self, *keys: str, offline: bool = False) -> list[float]:
        """One number from each run that has it. Two keys lead into a nested table."""
        results = (self.offline if offline else self.online).values()
        found: list[Any] = [reduce(getitem, keys, result) for result in results]
        return [value for value in found if value is not None]


@dataclass(frozen=True)
class Results:
    """The results of all entries, and the problems of the tasks that failed."""

    plan: Plan
    rows: list[EntryResults]
    problems: dict[str, str]

    @property
    def classes(self) -> list[str]:
        """The names of the classes."""
        results = (result for row in self.rows for result in (row.online | row.offline).values())
        return list(next(results, {}).get("per_class_accuracy", []))

    @property
    def protocol(self) -> dict[str, str]:
        """The protocol of the runs. Where entries differ, it names the entries of each value."""
        each: dict[str, dict[str, list[str]]] = {}  # part of the protocol: its values, with the entries that have them
        for row in self.rows:
            for part, value in next(iter(row.online.values()), {}).get("protocol", {}).items():
                each.setdefault(part, {}).setdefault(value, []).append(row.entry.label)
        return {part: _describe(values) for part, values in each.items() if part != "learning" or len(values) == 1}


def _describe(values: dict[str, list[str]]) -> str:
    """One value as it is, several with the entries that have them.

    >>> _describe({"overwritten": ["DAN", "ENT"], "kept": ["ConDA"]})
    'overwritten (DAN, ENT); kept (ConDA)'
    """
    if len(values) == 1:
        return next(iter(values))
    return "; ".join(f"{value} ({', '.join(labels)})" for value, labels in values.items())


def collect_results(plan: Plan, problems: dict[str, str]) -> Results:
    """Read the result files of all runs."""
    rows = []
    for entry in plan.entries:
        row = EntryResults(entry, {}, {}, {})
        for task in plan.tasks:
            if task.name != entry.key or task.title in problems:
                continue
            if task.kind == "online" and (task.folder / "result.json").exists():
                row.online[task.seed] = json.loads((task.folder / "result.json").read_text(encoding="utf-8"))
                with (task.folder / "curve.csv").open(newline="") as file:
                    row.curves[task.seed] = [float(line["online_accuracy"]) for line in csv.DictReader(file)]
            elif task.kind == "offline" and (task.folder / "offline.json").exists():
                row.offline[task.seed] = json.loads((task.folder / "offline.json").read_text(encoding="utf-8"))
        rows.append(row)
    return Results(plan, rows, problems)


def include_earlier_runs(plan: Plan) -> Plan:
    """Add the methods and seeds that are already in the folder, with the same settings, to a plan."""
    entries = {entry.key: entry for entry in plan.entries}
    seeds = set(plan.seeds)
    for path in [*plan.folder.glob("runs/*/result.json"), *plan.folder.glob("offline/*/offline.json")]:
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            name, seed = result["method"], int(result["seed"])
            entry = entries.get(name) or Entry(name, name, name)
            same = RunSettings.identity_of(result["settings"]) == plan.settings(entry, seed).identity
        except (OSError, ValueError, KeyError, TypeError, CrodoboError):
            continue
        if same and path.parent.name == f"{name}-seed{seed}":
            entries[name] = entry
            seeds.add(seed)
    ordered = sorted(entries.values(), key=lambda entry: list(REGISTRY).index(entry.method))
    return replace(plan, entries=tuple(ordered), seeds=tuple(sorted(seeds)), offline=True)


def mean_and_deviation(values: list[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation. A single value has no deviation."""
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
