"""What an audit of membership consists of: for each method so many shadow runs, all from one warm start."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from crodobo.audit.membership.inclusion import check_runs
from crodobo.errors import BadSettings
from crodobo.evaluate.comparison import Task
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method
from crodobo.methods.base import check_runs_online


@dataclass(frozen=True)
class ShadowTask(Task):
    """One shadow run; `number` says which, and with that who is in it."""

    number: int = 0
    passes: int = 1

    @property
    def scores(self) -> Path:
        """The file that it leaves behind."""
        return self.folder / "scores.safetensors"


@dataclass(frozen=True)
class ShadowPlan:
    """An audit before it is carried out.

    Parameters
    ----------
    folder
        Where everything goes.
    benchmark
        The benchmark's name.
    methods
        The methods that are attacked, by name.
    runs
        Shadow runs of each.
    seed
        Decides the warm start, who is in which run, and every draw.
    passes
        How often a run meets its stream.
    options
        Settings that all methods share.
    run
        Settings that all runs share: query size, number of queries, image size, stream order.
    """

    folder: Path
    benchmark: str
    methods: tuple[str, ...]
    runs: int = 32
    seed: int = 0
    passes: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_runs(self.runs)
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise BadSettings("there is no method to attack, or one is named twice; check --methods")
        for method in self.methods:
            check_runs_online(get_method(method), self.settings(method).options)

    def settings(self, method: str) -> RunSettings:
        """Everything that its shadow runs have in common. Learners take turns: a process has one thread."""
        kind = get_method(method)
        burn = "off" if kind.keeps_target else "standard"
        options = self.options | {"seed": self.seed, "threads": 1, "parallel": False, "burn": burn}
        return RunSettings.of(benchmark=self.benchmark, method=method, options=kind.Settings.of(**options), **self.run)

    @cached_property
    def tasks(self) -> list[Task]:
        """The warm-up, then all shadow runs."""
        warm_start = self.folder / "warm-starts" / f"seed{self.seed}.safetensors"
        settings = [self.settings(method) for method in self.methods]
        most = max(settings, key=lambda each: each.options.learners)
        return [Task("warm-up", "warm-up", self.seed, most, warm_start.parent, warm_start), *self.shadows]

    @cached_property
    def shadows(self) -> list[ShadowTask]:
        """The shadow runs, method by method."""
        warm_start = self.folder / "warm-starts" / f"seed{self.seed}.safetensors"
        return [
            ShadowTask(
                kind="shadow",
                name=f"{method}, run {number}",
                seed=self.seed,
                settings=self.settings(method),
                folder=self.folder / "shadows" / f"{method}-run{number:02d}",
                warm_start=warm_start,
                number=number,
                passes=self.passes,
            )
            for method in self.methods
            for number in range(self.runs)
        ]
