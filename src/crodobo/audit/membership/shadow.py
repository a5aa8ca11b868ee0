"""A shadow run: a method meets the stream of its members, and what its final weights say of every sample is kept."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.core.metrics import StreamRecord
from crodobo.core.pixels import Images, in_batches, to_unit
from crodobo.core.query import Query
from crodobo.data import Benchmark
from crodobo.data.order import stream_order
from crodobo.data.prefetch import ahead
from crodobo.evaluate.protocols import online
from crodobo.methods import Method
from crodobo.nn.learner import Learner

BATCH = 256  # samples that are scored at a time


def seed_of_run(seed: int, run: int) -> int:
    """The seed of a shadow run's order and draws."""
    return int(np.random.SeedSequence((seed, run)).generate_state(1)[0]) % 2**31


def draw_anew(learners: list[Learner], seed: int) -> None:
    """Give learners of a shared warm start draws of their own."""
    for number, learner in enumerate(learners):
        learner.generator = Generator().manual_seed(seed * 1009 + number)


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
    """Let a method meet the members as a stream, online.

    Parameters
    ----------
    method
        What adapts.
    benchmark
        Whose target the members are of.
    members
        Their numbers.
    seed
        Decides their order.
    size
        Samples in a query.
    kind
        In which order they come.
    passes
        How often. More than once is what burning after reading forbids, and what an audit has to notice.
    after_query
        Called when a query has been erased.
    """
    method.expect(passes * -(-len(members) // size))

    def queries() -> Iterator[tuple[Query, Tensor]]:
        for number in range(passes):
            order = members[stream_order(kind)(benchmark.labels[members], seed + number)]
            for chosen in order.split(size):
                yield Query(benchmark.images[chosen]), benchmark.labels[chosen]

    return online(method, ahead(queries()), after_query=after_query)


@torch.no_grad()
def log_probabilities(learners: list[Learner], images: Images, numbers: Tensor) -> Tensor:
    """Logarithms of the class probabilities that the final model, the learners' average, gives each sample.

    BatchNorm uses the running statistics, which are part of the weights: what is found of a sample does not depend on
    the samples beside it.
    """
    found = []
    for batch in ahead(in_batches(images, BATCH, numbers)):
        unit = to_unit(batch)
        each = torch.stack([torch.log_softmax(learner.network(unit), dim=1) for learner in learners])
        found.append(torch.logsumexp(each, dim=0) - np.log(len(learners)))
    return torch.cat(found)
