"""The plan of a membership audit: shadow runs of each method, all from one warm start."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from crodobo.audit.membership.inclusion import check_runs
from crodobo.errors import BadSettings
from crodobo.evaluate.comparison import Entry, Plan, Task
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method
from crodobo.methods.checks import check_runs_online


@dataclass(frozen=True)
class ShadowTask(Task):
    """One shadow run. Its number decides which samples are in it."""

    number: int = 0
    passes: int = 1

    @property
    def scores(self) -> Path:
        """The file that the run writes."""
        return self.folder / "scores.safetensors"


@dataclass(frozen=True)
class ShadowPlan:
    """All runs of an audit and their settings."""

    folder: Path
    benchmark: str
    methods: tuple[str, ...]
    runs: int = 32  # of each method
    seed: int = 0  # decides the warm start, the members of each run, and all random numbers
    passes: int = 1  # how often a run processes its stream
    options: dict[str, Any] = field(default_factory=dict)  # method settings that all methods share
    run: dict[str, Any] = field(default_factory=dict)  # run settings that all runs share: query size, image size, …

    def __post_init__(self) -> None:
        check_runs(self.runs)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            problem = "There is no method to attack, or one is named twice."
            raise BadSettings(problem, "Check the names.", settings=("methods",))
        for method in self.methods:
            check_runs_online(get_method(method), self.settings(method).options)

    @cached_property
    def comparison(self) -> Plan:
        """The same methods as a comparison, which has the settings and the warm-up that the shadow runs share."""
        entries = tuple(Entry(method, method, method) for method in self.methods)
        options = self.options | {"parallel": False}  # a process has one thread
        return Plan(self.folder, self.benchmark, entries, (self.seed,), options, self.run)

    def settings(self, method: str) -> RunSettings:
        """All settings that the shadow runs of a method share."""
        return self.comparison.settings(Entry(method, method, method), self.seed)

    @cached_property
    def tasks(self) -> list[Task]:
        """The warm-up, then all shadow runs."""
        return [self.comparison.tasks[0], *self.shadows]

    @cached_property
    def shadows(self) -> list[ShadowTask]:
        """The shadow runs, method by method."""
        return [
            ShadowTask(
                kind="shadow",
                name=f"{method}, run {number}",
                seed=self.seed,
                settings=self.settings(method),
                folder=self.folder / "shadows" / f"{method}-run{number:02d}",
                warm_start=self.comparison.tasks[0].warm_start,
                number=number,
                passes=self.passes,
            )
            for method in self.methods
            for number in range(self.runs)
        ]
