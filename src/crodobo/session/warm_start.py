"""Warm starts: learners that have learned the source, stored once and shared by all methods of a comparison."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crodobo.config import LearnerSettings, MethodSettings
from crodobo.data import Benchmark
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint
from crodobo.nn.learner import Learner, make_learners, warm_up
from crodobo.session.checkpoint import differences
from crodobo.storage.files import write_atomically

WARMING = set(LearnerSettings.model_fields) - {"norm", "running_weight"} | {"seed"}


def warm_learners(
    benchmark: Benchmark, settings: MethodSettings, after_step: Callable[[], None] = lambda: None
) -> tuple[list[Learner], float]:
    """A run's learners after their warm-up on the source, and the seconds that it took."""
    learners = make_learners(benchmark.source, settings.learners, settings.seed, settings)
    engine = make_engine(settings.learners, parallel=settings.parallel, threads=settings.threads)
    started = time.perf_counter()
    warm_up(learners, engine, benchmark.source, benchmark.augment, after_step)
    return learners, time.perf_counter() - started


def save_warm_start(
    path: Path, benchmark: Benchmark, learners: list[Learner], settings: MethodSettings, seconds: float
) -> None:
    """Write warm learners to a file, with what they were made of."""
    header = {"made_of": made_of(benchmark, settings), "learners": len(learners), "seconds": seconds}
    tensors = {
        f"learners.{number}.{name}": value.contiguous()
        for number, learner in enumerate(learners)
        for name, value in learner.state().items()
    }
    write_atomically(path, save(tensors, {"crodobo": json.dumps(header)}))


def load_warm_start(path: Path, benchmark: Benchmark, settings: MethodSettings) -> tuple[list[Learner], float]:
    """The first learners of a stored warm start, and the seconds that the warm-up took.

    A warm start made of something else, or of fewer learners, is refused.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["crodobo"])
            tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise BadCheckpoint(f"{path} is not a warm start, or is damaged; delete it, and it is made again") from error
    if header.get("made_of") is None:
        raise BadCheckpoint(f"{path} is not a warm start, or is damaged; delete it, and it is made again")
    if header["made_of"] != made_of(benchmark, settings) or header["learners"] < settings.learners:
        raise BadCheckpoint(f"{path} is the warm start of other settings; delete it, and it is made again")
    learners = make_learners(benchmark.source, settings.learners, settings.seed, settings)
    for number, learner in enumerate(learners):
        prefix = f"learners.{number}."
        learner.load_state(
            {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
        )
    return learners, header["seconds"]


def stored_learners(path: Path, settings: MethodSettings) -> int:
    """How many learners a file holds; none where there is no file, or one that cannot be read and is made again."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["crodobo"])
            learners, stored = int(header["learners"]), dict(header["made_of"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        return 0
    wanted = settings.model_dump(mode="json", include=WARMING)
    if different := differences({name: stored.get(name) for name in wanted}, wanted):
        raise BadCheckpoint(
            f"{path} is the warm start of other settings ({different}); choose another --out, or --fresh"
        )
    return learners


def made_of(benchmark: Benchmark, settings: MethodSettings) -> dict[str, Any]:
    """Everything that decides a warm start."""
    shape = "×".join(map(str, benchmark.source.shape))
    return {"benchmark": benchmark.name, "shape": shape, "data": benchmark.stamp} | settings.model_dump(
        mode="json", include=WARMING
    )
