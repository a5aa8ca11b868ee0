"""A shadow run: a method adapts to the stream of its members, and its final weights score every sample."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from crodobo.core.metrics import StreamRecord
from crodobo.core.pixels import Images, in_batches, to_unit
from crodobo.core.query import Query
from crodobo.data import Benchmark
from crodobo.data.order import stream_order
from crodobo.data.prefetch import prefetch
from crodobo.evaluate.protocols import online
from crodobo.methods import Method
from crodobo.nn.learner import Learner

BATCH = 256  # samples scored at a time


def seed_of_run(seed: int, run: int) -> int:
    """The seed of a shadow run's stream order and random numbers."""
    return int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) % 2**31


def reseed(learners: list[Learner], seed: int) -> None:
    """Give learners of a shared warm start their own random numbers."""
    for number, learner in enumerate(learners):
        learner.reseed(seed * 1009 + number)


def stream_members(
    method: Method,
    benchmark: Benchmark,
    members: Tensor,
    *,
    seed: int,
    size: int = 64,
    kind: str = "random",
    passes: int = 1,
    after_query: Callable[[StreamRecord], None] = lambda record: None,
) -> StreamRecord:
    """Adapt a method to the members, given by their indices in the target, as a stream, online.

    `kind` is the kind of stream order, and `seed` decides it. More than one of the `passes` violates burning after
    reading: a leak that the audit must detect. `after_query` is called after each query is erased.
    """
    method.expect(passes * -(-len(members) // size))

    def queries() -> Iterator[tuple[Query, Tensor]]:
        for number in range(passes):
            order = members[stream_order(kind)(benchmark.labels[members], seed + number)]
            for chosen in order.split(size):
                yield Query(benchmark.images[chosen]), benchmark.labels[chosen]

    return online(method, prefetch(queries()), after_query=after_query)


@torch.no_grad()
def log_probabilities(learners: list[Learner], images: Images, numbers: Tensor) -> Tensor:
    """Log-probabilities of the classes that the final model, the average of the learners, gives each sample.

    BatchNorm uses the running statistics, which are part of the weights, so a score depends on its own sample only.
    """
    found = []
    for batch in prefetch(in_batches(images, BATCH, numbers)):
        unit = to_unit(batch)
        each = torch.stack([torch.log_softmax(learner.network(unit), dim=1) for learner in learners])
        found.append(torch.logsumexp(each, dim=0) - np.log(len(learners)))
    return torch.cat(found)
