"""The protocols: how a method meets data, and what is counted. Each is one function, readable top to bottom.

The protocol owns the labels. A method only gets queries, and a query carries no labels.
"""

import contextlib
import math
import time
from collections import abc
from collections.abc import Callable, Iterable

import torch
from torch import Generator, Tensor

from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.pixels import Images, in_batches, to_unit
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data.prefetch import prefetch
from crodobo.errors import BadQuery, CrodoboError
from crodobo.methods.base import Method


def online(
    method: Method,
    stream: Iterable[tuple[Query, Tensor]],
    record: StreamRecord | None = None,
    after_query: Callable[[StreamRecord], None] = lambda record: None,
) -> StreamRecord:
    """Adapt on each query, predict it, erase it, and score it with labels that the method never sees.

    Online accuracy weights samples, not queries, so a short last query counts for the samples it holds.
    A query that the method refuses is noted in the record, and the stream goes on.

    Parameters
    ----------
    method
        The method that adapts and predicts.
    stream
        Queries, each with its labels.
    record
        The record of earlier queries, to continue.
    after_query
        Called with the record after each query is erased.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source, SourceOnly
    >>> method = SourceOnly(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> stream = [(Query(torch.rand(3, 1, 32, 32)), torch.tensor([0, 1, 1]))]
    >>> online(method, stream).confusion.samples
    3
    """
    classes = len(method.source.classes)
    record = record or StreamRecord(ConfusionMatrix(classes))
    with contextlib.closing(stream) if isinstance(stream, abc.Generator) else contextlib.nullcontext():
        for query, labels in stream:
            started = time.perf_counter()
            try:
                with query:
                    check_labels(labels, len(query), classes)
                    prediction = method.step(query)
            except BadQuery as error:
                record.refuse(len(labels), str(error))
            else:
                record.add(prediction, labels, seconds=time.perf_counter() - started)
            after_query(record)
    return record


def check_labels(labels: Tensor, samples: int, classes: int) -> None:
    """Refuse labels that do not fit a query, before the method learns from it."""
    if labels.shape != (samples,) or (samples and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        remedy = f"Give one label from 0 to {classes - 1} for each sample."
        raise CrodoboError(f"The labels of a query do not fit its {samples} samples.", remedy)


def one_pass(method: Method, images: Images, labels: Tensor, size: int, order: Tensor | None = None) -> ConfusionMatrix:
    """Score the final model on the whole target, or on the samples in `order`, without adapting.

    Only a benchmark allows this, because it keeps its data. A private stream is erased by then.
    """
    confusion = ConfusionMatrix(len(method.source.classes))
    order = torch.arange(len(labels)) if order is None else order
    for batch, truth in zip(prefetch(in_batches(images, size, order)), labels[order].split(size), strict=True):
        confusion.update(method.predict(batch).labels, truth)
    return confusion


def steps_per_epoch(source: Source, target: Images, size: int) -> int:
    """The number of batches in the larger domain."""
    return math.ceil(max(len(target), len(source)) / size)


@torch.inference_mode(False)
@torch.enable_grad()
def offline(
    method: Method,
    images: Images,
    labels: Tensor,
    *,
    size: int,
    epochs: int = 10,
    seed: int = 0,
    after_step: Callable[[], None] = lambda: None,
) -> ConfusionMatrix:
    """Train on both domains for some epochs, then score the whole target: the result of storing everything.

    An epoch has as many steps as the larger domain has batches; the smaller domain repeats. The labels are only used
    for the score.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Source, SourceOnly
    >>> method = SourceOnly(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> offline(method, torch.rand(3, 1, 32, 32), torch.tensor([0, 1, 1]), size=2, epochs=1).samples
    3
    """
    generator = Generator().manual_seed(seed)
    steps = steps_per_epoch(method.source, images, size)
    method.expect(epochs * steps)
    method.choose_views(to_unit(images[torch.arange(min(size, len(images)))]))
    for learner in method.learners:
        learner.share = 1.0
    for _ in range(epochs):
        method.survey(images)
        rounds = math.ceil(steps * size / len(images))
        order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(rounds)])
        for indices in order[: steps * size].split(size):
            with Query(images[indices]) as batch:
                method.revisit(batch, batch.pixels(), indices)
            method.steps += 1
            after_step()
    order = torch.randperm(len(images), generator=generator)  # mixed classes, for the statistics of each batch
    return one_pass(method, images, labels, size, order)
