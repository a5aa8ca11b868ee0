"""MissedBursts: how certain it is that a stream comes in bursts which the learners do not see."""

import torch
from torch import Tensor

from crodobo.guard.mixedness import Spread

SURE, UNSURE = 0.2, 0.5  # blindness up to which learners see bursts, and from which they do not
PROBATION = 512  # samples of a domain near the source after which it counts as mixed, if nothing speaks against it


class MissedBursts:
    """Learners that are sure of their predictions see a burst. Others need the spread of the queries, and time.

    >>> bursts = MissedBursts(features=4)
    >>> bursts.certainty(blindness=0.9, samples=0), bursts.certainty(blindness=0.1, samples=0)
    (1.0, 0.0)
    """

    def __init__(self, features: int) -> None:
        self.spread = Spread(features)
        self.blindness = torch.full((1,), 0.5)  # of the learners, on the last query

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        return {**self.spread.tensors(), "blindness": self.blindness}

    def certainty(self, blindness: float, samples: int | None) -> float:
        """How certain missed bursts are, from 0 to 1, for learners as blind as this.

        `samples` is how many have come of a domain near the source. Until the probation is over it counts as one that
        comes in bursts: not to follow a mixed stream for a few queries costs little, to follow a burst costs a lot. A
        domain far away (None) is unknown without its statistics, so it is followed from the start.
        """
        unseen = self.spread.unseen
        if samples is not None:
            unseen = max(unseen, 1 - samples / PROBATION)
        return unseen * min(1.0, max(0.0, (blindness - SURE) / (UNSURE - SURE)))

    def clear(self) -> None:
        """Begin with a new domain."""
        self.spread.clear()
