"""The task of one process of the audit: a shadow run that stores the scores of its final weights."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from crodobo.audit.membership.inclusion import choose_pool, draw_members
from crodobo.audit.membership.plan import ShadowTask
from crodobo.audit.membership.shadow import log_probabilities, reseed, seed_of_run, stream_members
from crodobo.core.counts import Counts
from crodobo.core.metrics import StreamRecord
from crodobo.errors import BadCheckpoint, Interrupted
from crodobo.evaluate.comparison import Task
from crodobo.evaluate.comparison.tasks import PipeObserver, TaskHandlers, finished_result, warm_up
from crodobo.evaluate.run import load_data
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method
from crodobo.session.checkpoint import differences
from crodobo.session.stop import StopSignal
from crodobo.session.warm_start import load_warm_start, make_method
from crodobo.storage.lock import locked_folder
from crodobo.storage.tensors import UnreadableTensors, load_tensors, save_tensors


def shadow(task: ShadowTask, observer: PipeObserver) -> None:
    """Stream the members of a run, then score every sample of the pool with the final weights."""
    settings = task.settings
    benchmark = load_data(settings, observer)
    with locked_folder(task.folder), StopSignal() as stop:
        pool = pool_of(settings, len(benchmark.labels))
        members = torch.from_numpy(pool[draw_members(len(pool), task.number, task.seed)])
        draws = seed_of_run(task.seed, task.number)
        learners, _ = load_warm_start(task.warm_start, benchmark, settings.options)
        reseed(learners, draws)
        options = settings.options.model_copy(update={"seed": draws})
        method = make_method(get_method(settings.method), benchmark, learners, options)

        def report(record: StreamRecord) -> None:
            if stop.requested:
                raise Interrupted("Stopped during a shadow run.")
            observer.query(Counts(queries=record.queries, accuracy=record.online_accuracy))

        size, passes = settings.query_size, task.passes
        observer.streaming(passes * -(-len(members) // size))
        stream_members(
            method, benchmark, members, seed=draws, size=size, kind=settings.stream, passes=passes, after_query=report
        )
        scores = log_probabilities(method.learners, benchmark.images, torch.from_numpy(pool))
        header = {"made_of": made_of(task), "data": benchmark.stamp}
        save_tensors(task.scores, {"log_probabilities": scores}, header)


def pool_of(settings: RunSettings, samples: int) -> np.ndarray:
    """The indices of the samples that shadow runs draw from: twice as many as one run streams."""
    size = 2 * settings.queries * settings.query_size if settings.queries else None
    return choose_pool(samples, size, settings.options.seed)


def made_of(task: ShadowTask) -> dict[str, Any]:
    """Everything that decides the scores of a shadow run, except the data."""
    return task.settings.identity | {"run": task.number, "passes": task.passes}


def load_scores(task: ShadowTask) -> tuple[Tensor, str] | None:
    """The scores of a shadow run and the stamp of its data. None if they are missing or damaged."""
    try:
        tensors, header = load_tensors(task.scores)
        scores, stored, stamp = tensors["log_probabilities"], dict(header["made_of"]), str(header["data"])
    except (UnreadableTensors, KeyError, ValueError, TypeError):
        return None
    if different := differences(stored, made_of(task)):
        raise refusal(f"{task.folder} holds a shadow run with other settings: {different}.")
    return scores, stamp


def refusal(problem: str) -> BadCheckpoint:
    """The error for a folder with shadow runs that cannot be used here."""
    return BadCheckpoint(problem, "Choose another result folder, or start over.", settings=("out", "fresh"))


def finished(task: Task) -> object | None:
    """The result of a task that is finished with the same settings, or None."""
    return load_scores(task) if isinstance(task, ShadowTask) else finished_result(task)


AUDITING = TaskHandlers({"warm-up": warm_up, "shadow": shadow}, finished)
