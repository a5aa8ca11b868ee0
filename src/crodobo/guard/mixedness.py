"""Whether a query has the classes of a usual query, by two signs that are blind in different places.

`UsualClasses` looks at the predicted classes. They show a burst if the predictions are mostly right. `Spread` asks
whether queries are random parts of the stream. It needs no right predictions, but several queries.
"""

import math

import torch
from torch import Tensor

FULL = 64  # samples of a full query
SLOW = 0.05  # how far a full query moves the usual predictions
BIAS = 2.0  # largest factor by which a class can be predicted too often or too rarely
TRACKED = 320  # samples that the stream's mean covers
# Evidence of bursts, in decimal digits of the probability of a query. Random queries have 0.43 on average.
USUAL, CERTAIN, MOST = 0.9, 3.0, 6.0  # what each query is expected to have; from which bursts are certain; the largest
UNDECIDED = 1.5  # before anything is known


class UsualClasses:
    """The class mix of the predictions of a stream.

    Parameters
    ----------
    prior
        The class mix of the source, which is expected at first.
    """

    def __init__(self, prior: Tensor) -> None:
        self.prior = prior
        self.same = float(prior.square().sum())  # the chance of two samples to have the same class
        self.usual = prior.clone()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        return {"usual": self.usual}

    def add(self, probabilities: Tensor, count: int) -> None:
        """Take the predictions of a query, or of some of its `count` samples, into the usual ones."""
        self.usual += SLOW * min(1.0, count / FULL) * (probabilities.mean(dim=0) - self.usual)

    def unbiased(self, probabilities: Tensor) -> Tensor:
        """Predictions without the usual preference for some classes."""
        weighted = probabilities * (self.prior / self.usual.clamp(min=1e-6)).clamp(1 / BIAS, BIAS)
        return weighted / weighted.sum(dim=1, keepdim=True)

    def narrowness(self, probabilities: Tensor) -> float:
        """How few classes a query seems to have: 0 if as many as the source, 1 for a single one.

        >>> classes = UsualClasses(torch.full((4,), 0.25))
        >>> round(classes.narrowness(torch.eye(4).repeat(8, 1)), 2), classes.narrowness(torch.eye(4)[[2] * 8])
        (0.0, 1.0)
        """
        count = len(probabilities)
        if count < 2:
            return 0.0
        each = self.unbiased(probabilities)
        same = float(each.sum(dim=0).square().sum() - each.square().sum()) / (count * (count - 1))
        most = 1 / self.same
        return min(1.0, max(0.0, (most - 1 / max(same, 1e-6)) / (most - 1)))

    def blindness(self, probabilities: Tensor) -> float:
        """How likely predictions as unsure as these are to miss a burst: 0 for certain ones, 1 for mere guesses."""
        sureness = float(probabilities.square().sum(dim=1).mean())
        return min(1.0, max(0.0, (1 - sureness) / (1 - self.same)))

    def clear(self) -> None:
        """Begin with a new domain."""
        self.usual.copy_(self.prior)


class Spread:
    """Whether the queries of a stream are random parts of it, tested by the means of their features.

    If a query is a random part of the stream, its mean differs from the stream's only by chance. How likely a
    difference at least as large is by chance does not depend on the features or on what the network knows, so the same
    limits hold for every stream. Evidence adds up over the queries, and fades while they look random. It is kept apart
    for bursts that show in the predictions and for those that do not.

    >>> spread, generator = Spread(8), torch.Generator().manual_seed(0)
    >>> for _ in range(30):
    ...     spread.add(torch.randn(32, 8, generator=generator), seen=False)
    >>> mixed = spread.bursts
    >>> for number in range(30):
    ...     spread.add(torch.randn(32, 8, generator=generator) + number % 2, seen=False)
    >>> mixed < 0.3, spread.bursts, spread.unseen
    (True, 1.0, 1.0)
    """

    def __init__(self, features: int) -> None:
        self.mean, self.square = torch.zeros(features), torch.zeros(features)
        self.samples = torch.zeros(1)  # that the mean covers
        self.evidence = torch.tensor([UNDECIDED, 0.0])  # of bursts that the predictions do not show, and of others

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        return {"mean": self.mean, "square": self.square, "samples": self.samples, "evidence": self.evidence}

    @property
    def bursts(self) -> float:
        """How certain it is that the stream comes in bursts of any kind, from 0 to 1."""
        return min(1.0, float(self.evidence.sum()) / CERTAIN)

    @property
    def unseen(self) -> float:
        """How certain it is that the stream comes in bursts that the predictions do not show, from 0 to 1."""
        unseen, seen = self.evidence.tolist()
        if unseen >= CERTAIN:
            return 1.0
        return unseen / CERTAIN * unseen / (unseen + seen) if unseen else 0.0

    def add(self, features: Tensor, seen: bool) -> None:
        """Take the samples of a query into the mean, after comparing them with it.

        `seen` says whether the predictions show a burst.
        """
        if not features.isfinite().all():
            return
        if self.samples >= FULL:  # fewer say too little about the stream
            surprise = min(CERTAIN, -math.log10(max(self.chance(features), 1e-9)))
            found = float(self.evidence[0]) >= CERTAIN  # bursts that were seen since do not make it less certain
            self.evidence[int(seen)] += surprise
            self.evidence -= torch.tensor([0.0 if seen and found else USUAL, USUAL])
            self.evidence.clamp_(0, MOST)
        self.samples += len(features)
        self.samples.clamp_(max=TRACKED)
        momentum = min(1.0, len(features) / float(self.samples))
        self.mean += momentum * (features.mean(dim=0) - self.mean)
        self.square += momentum * (features.square().mean(dim=0) - self.square)

    def chance(self, features: Tensor) -> float:
        """The probability that the mean of random samples of the stream is at least as far from the stream's mean.

        The squared distance is a sum over features that depend on each other. It is taken for a χ² with as many degrees
        of freedom as there are independent ones, (Σλ)²/Σλ² for the eigenvalues λ of their correlations.
        """
        count = len(features)
        variance = (self.square - self.mean.square()).clamp(min=1e-6)
        deviation = variance.clamp(min=float(variance.mean()) / 100).sqrt()  # a feature may have been constant so far
        distance = float(((features.mean(dim=0) - self.mean) / deviation).square().mean())
        distance /= 1 / count + 1 / float(self.samples)
        apart = (features - features.mean(dim=0)) / deviation
        products = apart @ apart.T  # its eigenvalues are those of the correlations
        freedom = float(products.trace().square() / products.square().sum().clamp(min=1e-12))
        half = torch.tensor(max(1.0, freedom) / 2, dtype=torch.float64)
        return float(torch.special.gammaincc(half, half * distance))

    def clear(self) -> None:
        """Begin with a new domain."""
        self.samples.zero_()
        self.evidence.copy_(torch.tensor([UNDECIDED, 0.0]))
