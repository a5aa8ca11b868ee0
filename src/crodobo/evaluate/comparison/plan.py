"""The plan of a comparison: entries, each a method with its settings, run once for every seed."""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from crodobo.errors import BadSettings
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method

Kind = Literal["warm-up", "online", "offline", "shadow"]


@dataclass(frozen=True)
class Entry:
    """One row or one cell of a table: a method and the settings that only it has."""

    key: str  # name in files, unique in a comparison
    label: str  # name in tables
    method: str
    options: dict[str, Any] = field(default_factory=dict)  # of the method, where they differ from the shared ones
    stream: dict[str, Any] = field(default_factory=dict)  # `stream` and `stream_seed`, where they differ
    row: str = ""  # place in a table with a column for each setting
    column: str = ""


@dataclass(frozen=True)
class Task:
    """One piece of work for one process. The runs of a seed wait for the warm-up of that seed."""

    kind: Kind
    name: str
    seed: int
    settings: RunSettings
    folder: Path
    warm_start: Path
    epochs: int = 0

    @property
    def title(self) -> str:
        """The name to show."""
        return f"{self.name}{' offline' if self.kind == 'offline' else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """All runs of a comparison and their settings. Results go to `folder`, and each entry runs once for every seed."""

    folder: Path
    benchmark: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)  # of the method, shared by all entries
    run: dict[str, Any] = field(default_factory=dict)  # shared by all entries: sizes, number of queries, stream order
    offline: bool = False  # run the offline protocol too, for methods that have an offline form
    epochs: int = 10  # of the offline protocol

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            problem = "There are no seeds, or one is named twice."
            raise BadSettings(problem, "Give different numbers: 0,1,2.", settings=("seeds",))
        keys = [entry.key for entry in self.entries]
        if not keys or len(set(keys)) < len(keys):
            problem = "There is nothing to compare, or a method is named twice."
            raise BadSettings(problem, "Check the names.", settings=("methods",))
        for entry, seed in itertools.product(self.entries, self.seeds):
            self.settings(entry, seed)  # wrong settings fail here, before anything runs

    def settings(self, entry: Entry, seed: int) -> RunSettings:
        """All settings of a run. Each learner gets one thread, so that times are comparable."""
        kind = get_method(entry.method)
        burn = "off" if kind.keeps_target else "standard"
        options = kind.Settings.of(**self.options | entry.options | {"seed": seed, "threads": 1, "burn": burn})
        shared = self.run | entry.stream
        return RunSettings.of(benchmark=self.benchmark, method=entry.method, options=options, **shared)

    @cached_property
    def tasks(self) -> list[Task]:
        """All tasks in a possible order: for each seed the warm-up, then the longest runs first."""
        return [task for seed in self.seeds for task in self._tasks_of(seed)]

    def _tasks_of(self, seed: int) -> list[Task]:
        warm_start = self.folder / "warm-starts" / f"seed{seed}.safetensors"
        runs: list[Task] = []
        for entry in self.entries:
            settings, protocols = self.settings(entry, seed), get_method(entry.method).protocols
            name = f"{entry.key}-seed{seed}"
            if "online" in protocols:
                runs.append(Task("online", entry.key, seed, settings, self.folder / "runs" / name, warm_start))
            if "offline" in protocols and self.offline:
                folder = self.folder / "offline" / name
                runs.append(Task("offline", entry.key, seed, settings, folder, warm_start, self.epochs))
        if not runs:
            return []
        runs.sort(key=lambda task: (task.kind == "offline", task.settings.options.learners), reverse=True)
        most = max(runs, key=lambda task: task.settings.options.learners)
        return [Task("warm-up", "warm-up", seed, most.settings, warm_start.parent, warm_start), *runs]
