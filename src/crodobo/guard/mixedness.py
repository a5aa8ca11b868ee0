"""Mixedness: whether a query has the classes of a usual query, and which mix it has if not.

Two signs are used, because each is blind where the other sees. The predicted classes show a narrow query if the learners
know the domain; what they usually predict wrongly is taken out first. And a query that is a random part of the stream
lies around the stream's mean as chance has it, whatever the learners know; a burst lies elsewhere.
"""

import torch
from torch import Tensor

SLOW = 0.05  # how far 64 samples move the usual mix
FULL = 64  # samples of a full query
TRACKED = 320  # samples that the stream's mean covers
BIAS = 2.0  # largest factor by which a class can be predicted too often or too rarely
SHIFT = 0.2  # how far a full query moves the spread
UNDECIDED = 2.0  # the spread before anything is known
LARGEST = 10.0  # the largest spread of a single query that counts


class Mixedness:
    """What is usual in a stream, from what the reference sees in its samples."""

    def __init__(self, prior: Tensor, features: int) -> None:
        self.prior = prior
        self.usual = prior.clone()  # mean of the predictions
        self.mean, self.square = torch.zeros(features), torch.zeros(features)  # of the features
        self.samples = torch.zeros(1)  # that the mean covers
        self.spread = torch.full((1,), UNDECIDED)  # of queries around the mean, 1 for random parts of the stream

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        names = ("usual", "mean", "square", "samples", "spread")
        return {name: getattr(self, name) for name in names}

    def unbiased(self, probabilities: Tensor) -> Tensor:
        """Predictions without the usual preference for some classes."""
        weighted = probabilities * (self.prior / self.usual.clamp(min=1e-6)).clamp(1 / BIAS, BIAS)
        return weighted / weighted.sum(dim=1, keepdim=True)

    def narrowness(self, probabilities: Tensor) -> float:
        """How few classes a query seems to have: 0 if as many as the source, 1 for a single one.

        >>> mixedness = Mixedness(torch.full((4,), 0.25), features=2)
        >>> round(mixedness.narrowness(torch.eye(4).repeat(8, 1)), 2), mixedness.narrowness(torch.eye(4)[[2] * 8])
        (0.0, 1.0)
        """
        count = len(probabilities)
        if count < 2:
            return 0.0
        each = self.unbiased(probabilities)
        same = float(each.sum(dim=0).square().sum() - each.square().sum()) / (count * (count - 1))
        usual = 1 / float(self.prior.square().sum())
        return min(1.0, max(0.0, (usual - 1 / max(same, 1e-6)) / (usual - 1)))

    def blindness(self, probabilities: Tensor) -> float:
        """How likely predictions as unsure as these are to miss a burst: 0 for certain ones, 1 for mere guesses."""
        base = float(self.prior.square().sum())
        return min(1.0, max(0.0, (1 - float(probabilities.square().sum(dim=1).mean())) / (1 - base)))

    @property
    def bursts(self) -> float:
        """Evidence that queries are no random parts of the stream: 0 for none, 1 if their own mean says nothing."""
        return min(1.0, max(0.0, 2 * (1 - 1 / float(self.spread))))

    def add(self, probabilities: Tensor, features: Tensor, count: int) -> None:
        """Take samples of a query of `count` into what is usual."""
        share, seen, before = min(1.0, count / FULL), len(features), float(self.samples)
        if before >= seen:
            variance = (self.square - self.mean.square()).clamp(min=1e-6)
            distance = float(((features.mean(dim=0) - self.mean).square() / variance).mean())
            spread = min(LARGEST, distance / (1 / seen + 1 / before))
            self.spread += SHIFT * share * (spread - self.spread)
        self.usual += SLOW * share * (probabilities.mean(dim=0) - self.usual)
        self.samples += seen
        self.samples.clamp_(max=TRACKED)
        momentum = seen / float(self.samples)
        self.mean += momentum * (features.mean(dim=0) - self.mean)
        self.square += momentum * (features.square().mean(dim=0) - self.square)

    def forget_stream(self) -> None:
        """Begin with a new domain."""
        self.usual.copy_(self.prior)
        self.samples.zero_()
