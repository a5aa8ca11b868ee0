"""What a comparison consists of: entries, each of them a method with settings, run for every seed."""

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
    """One row, or one cell, of a table: a method with what sets it apart from the others.

    Parameters
    ----------
    key
        Its name in files, unique in a comparison.
    label
        Its name for people.
    method
        The method's name.
    options
        Settings of the method that differ from its defaults.
    stream
        Settings of the stream that differ from the comparison's: `stream`, `stream_seed`.
    row, column
        Its place in a table that has a column for each setting.
    """

    key: str
    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    stream: dict[str, Any] = field(default_factory=dict)
    row: str = ""
    column: str = ""


@dataclass(frozen=True)
class Task:
    """A piece of work for one process. A warm-up is named `warm-up`; the runs of its seed wait for it."""

    kind: Kind
    name: str
    seed: int
    settings: RunSettings
    folder: Path
    warm_start: Path
    epochs: int = 0

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name}{' offline' if self.kind == 'offline' else ''}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """A comparison before it is carried out.

    Parameters
    ----------
    folder
        Where everything goes.
    benchmark
        The benchmark's name.
    entries
        What is compared.
    seeds
        Each entry is run once for every seed.
    options
        Settings that all methods share.
    run
        Settings that all runs share: query size, number of queries, image size, stream order.
    offline
        Whether methods with an offline form are run under that protocol too.
    epochs
        Of the offline protocol.
    """

    folder: Path
    benchmark: str
    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)
    offline: bool = False
    epochs: int = 10

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BadSettings("the seeds are to be different numbers, at least one; for example --seeds 0,1,2")
        keys = [entry.key for entry in self.entries]
        if not keys or len(set(keys)) < len(keys):
            raise BadSettings("there is nothing to compare, or a method is named twice; check --methods")
        for entry, seed in itertools.product(self.entries, self.seeds):
            self.settings(entry, seed)  # what is wrong with the settings is said before anything begins

    def settings(self, entry: Entry, seed: int) -> RunSettings:
        """Everything that decides a run. Each learner has one thread, so that times compare."""
        kind = get_method(entry.method)
        burn = "off" if kind.keeps_target else "standard"
        options = self.options | entry.options | {"seed": seed, "threads": 1, "burn": burn}
        return RunSettings.of(
            benchmark=self.benchmark,
            method=entry.method,
            options=kind.Settings.of(**options),
            **self.run | entry.stream,
        )

    @cached_property
    def tasks(self) -> list[Task]:
        """All work, in an order in which it can be done: for each seed the warm-up, then the longest runs first."""
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
