"""What one process of the audit does: a shadow run, whose scores it leaves behind."""

import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from crodobo.audit.membership.inclusion import choose_pool, draw_members
from crodobo.audit.membership.plan import ShadowTask
from crodobo.audit.membership.shadow import draw_anew, log_probabilities, seed_of_run, stream_members
from crodobo.core.counts import Counts
from crodobo.core.metrics import StreamRecord
from crodobo.errors import BadCheckpoint, Interrupted
from crodobo.evaluate.comparison import Task
from crodobo.evaluate.comparison.tasks import PipeObserver, TaskHandlers, finished_result, warm_up
from crodobo.evaluate.run import identity_of, load_data, make_method
from crodobo.evaluate.settings import RunSettings
from crodobo.methods import get_method
from crodobo.session.checkpoint import differences
from crodobo.session.stop import StopSignal
from crodobo.session.warm_start import load_warm_start
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_folder


def shadow(task: ShadowTask, reporter: PipeObserver) -> None:
    """Stream the members of a run, then score every sample of the pool with the final weights."""
    settings = task.settings
    benchmark = load_data(settings, reporter)
    with locked_folder(task.folder), StopSignal() as stop:
        pool = pool_of(settings, len(benchmark.labels))
        members = torch.from_numpy(pool[draw_members(len(pool), task.number, task.seed)])
        draws = seed_of_run(task.seed, task.number)
        learners, _ = load_warm_start(task.warm_start, benchmark, settings.options)
        draw_anew(learners, draws)
        options = settings.options.model_copy(update={"seed": draws})
        method = make_method(get_method(settings.method), benchmark, learners, options)

        def after_query(record: StreamRecord) -> None:
            if stop.requested:
                raise Interrupted("stopped in the middle of a shadow run")
            reporter.query(Counts(queries=record.queries, accuracy=record.online_accuracy))

        reporter.streaming(task.passes * -(-len(members) // settings.query_size))
        stream_members(
            method,
            benchmark,
            members,
            seed=draws,
            size=settings.query_size,
            kind=settings.stream,
            passes=task.passes,
            after_query=after_query,
        )
        scores = log_probabilities(method.learners, benchmark.images, torch.from_numpy(pool))
        header = {"made_of": made_of(task), "data": benchmark.stamp}
        write_atomically(task.scores, save({"log_probabilities": scores}, {"crodobo": json.dumps(header)}))


def pool_of(settings: RunSettings, samples: int) -> np.ndarray:
    """Numbers of the samples that the shadow runs draw from: twice what the queries of one run take."""
    size = 2 * settings.queries * settings.query_size if settings.queries else None
    return choose_pool(samples, size, settings.options.seed)


def made_of(task: ShadowTask) -> dict[str, Any]:
    """Everything that decides a shadow run's scores, the data apart."""
    return identity_of(task.settings.model_dump(mode="json")) | {"run": task.number, "passes": task.passes}


def load_scores(task: ShadowTask) -> tuple[Tensor, str] | None:
    """What a shadow run has left behind, and the stamp of its data; None where it is to be run."""
    try:
        with safe_open(task.scores, framework="pt") as file:
            header = json.loads((file.metadata() or {})["crodobo"])
            scores, stored, stamp = file.get_tensor("log_probabilities"), dict(header["made_of"]), str(header["data"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        return None
    if different := differences(stored, made_of(task)):
        raise BadCheckpoint(
            f"{task.folder} holds a shadow run with other settings ({different}); choose another --out, or --fresh"
        )
    return scores, stamp


def finished(task: Task) -> object | None:
    """What shows that a task has been carried out before, with the same settings."""
    return load_scores(task) if isinstance(task, ShadowTask) else finished_result(task)


AUDITING = TaskHandlers({"warm-up": warm_up, "shadow": shadow}, finished)
