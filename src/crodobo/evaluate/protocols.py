"""The protocols: how a method meets data, and what is counted. Each is one function, readable top to bottom.

The protocol, not the method, owns the labels: a method is given queries, and a query carries none.
"""

import math
import time
from collections.abc import Callable, Iterable

import torch
from torch import Generator, Tensor

from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.pixels import Images, in_batches
from crodobo.core.prediction import Prediction
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data.prefetch import closing_generator, prefetch
from crodobo.errors import BadQuery, CrodoboError
from crodobo.methods.base import Method


def online(
    method: Method,
    stream: Iterable[tuple[Query, Tensor]],
    record: StreamRecord | None = None,
    after_query: Callable[[StreamRecord, Prediction | None], None] = lambda record, prediction: None,
    after_burn: Callable[[Query, int], None] = lambda query, samples: None,
) -> StreamRecord:
    """Adapt on each query, predict it, erase it; score it with labels that the method never sees.

    Online accuracy weights samples, not queries, so that a short last query counts for what it holds.
    A query that cannot be taken is noted in the record, and the stream goes on.

    Parameters
    ----------
    method
        What adapts and predicts.
    stream
        Queries, each with the labels that it is scored by.
    record
        The record of the queries before, to go on with.
    after_query
        Called when a query has been erased, with its prediction, or None if it was refused.
    after_burn
        Called before that, with the erased query and how many samples it had.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source, SourceOnly
    >>> method = SourceOnly(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> stream = [(Query(torch.rand(3, 1, 32, 32)), torch.tensor([0, 1, 1]))]
    >>> online(method, stream).confusion.samples
    3
    """
    record = record or StreamRecord(ConfusionMatrix(len(method.source.classes)))
    with closing_generator(stream) as queries:
        for query, labels in queries:
            started = time.perf_counter()
            prediction = None
            try:
                with query:
                    _check_labels(labels, len(query), len(method.source.classes))
                    prediction = method.step(query)
            except BadQuery as error:
                record.refuse(len(labels), str(error))
            else:
                record.add(prediction, labels, seconds=time.perf_counter() - started)
            after_burn(query, len(labels))
            after_query(record, prediction)
    return record


def _check_labels(labels: Tensor, samples: int, classes: int) -> None:
    """Before anything is learned: labels that do not fit would spoil the score after the weights have moved."""
    if labels.shape != (samples,) or (samples and not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        raise CrodoboError(f"a query of {samples} samples needs {samples} labels in 0 to {classes - 1} to be scored by")


def one_pass(method: Method, images: Images, labels: Tensor, size: int, order: Tensor | None = None) -> ConfusionMatrix:
    """Score the final model on the whole target once more, or on the samples in `order`, without adapting.

    Only a benchmark, which owns its data, can: a private stream is gone by then.
    """
    confusion = ConfusionMatrix(len(method.source.classes))
    order = torch.arange(len(labels)) if order is None else order
    for batch, truth in zip(prefetch(in_batches(images, size, order)), labels[order].split(size), strict=True):
        confusion.update(method.predict(batch).labels, truth)
    return confusion


def steps_of_epoch(source: Source, target: Images, size: int) -> int:
    """Batches of the larger domain."""
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
    """Go over both domains for some epochs, then score the whole target: what storing everything would give.

    An epoch is as many steps as the larger domain has batches; the smaller one starts anew when it is through. The
    labels are for the score alone.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Source, SourceOnly
    >>> method = SourceOnly(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> offline(method, torch.rand(3, 1, 32, 32), torch.tensor([0, 1, 1]), size=2, epochs=1).samples
    3
    """
    generator = Generator().manual_seed(seed)
    steps = steps_of_epoch(method.source, images, size)
    method.expect(epochs * steps)
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
    order = torch.randperm(len(images), generator=generator)  # batches of mixed classes, as a query's statistics need
    return one_pass(method, images, labels, size, order)
