"""Whether a query has the classes of a usual query, by two signs that are blind in different places.

`UsualClasses` looks at the predicted classes. They show a burst if the predictions are mostly right. `Spread` asks
whether queries are random parts of the stream. It needs no right predictions, but several queries.
"""

import torch
from torch import Tensor

FULL = 64  # samples of a full query
SLOW = 0.05  # how far a full query moves the usual predictions
BIAS = 2.0  # largest factor by which a class can be predicted too often or too rarely
TRACKED = 320  # samples that the stream's mean covers
SHIFT = 0.2  # how far a full query moves the spread
UNDECIDED = 2.0  # the spread before anything is known
LARGEST = 10.0  # the largest spread of a single query that counts


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
    """How far queries lie around the mean of the stream, compared with random parts of it.

    >>> spread, generator = Spread(8), torch.Generator().manual_seed(0)
    >>> for _ in range(30):
    ...     spread.add(torch.randn(32, 8, generator=generator), 64)
    >>> mixed = spread.bursts
    >>> for number in range(30):
    ...     spread.add(torch.randn(32, 8, generator=generator) + number % 2, 64)
    >>> mixed < 0.3, spread.bursts
    (True, 1.0)
    """

    def __init__(self, features: int) -> None:
        self.mean, self.square = torch.zeros(features), torch.zeros(features)
        self.samples = torch.zeros(1)  # that the mean covers
        self.spread = torch.full((1,), UNDECIDED)  # 1 for random parts

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        return {"mean": self.mean, "square": self.square, "samples": self.samples, "spread": self.spread}

    @property
    def bursts(self) -> float:
        """Evidence that the stream comes in bursts: 0 for none, 1 if a query says nothing of the stream."""
        return min(1.0, max(0.0, 2 * (1 - 1 / float(self.spread))))

    def add(self, features: Tensor, count: int) -> None:
        """Take samples of a query of `count` into the mean, after comparing them with it."""
        seen, before = len(features), float(self.samples)
        if before >= seen:
            variance = (self.square - self.mean.square()).clamp(min=1e-6)
            distance = float(((features.mean(dim=0) - self.mean).square() / variance).mean())
            spread = min(LARGEST, distance / (1 / seen + 1 / before))
            self.spread += SHIFT * min(1.0, count / FULL) * (spread - self.spread)
        self.samples += seen
        self.samples.clamp_(max=TRACKED)
        momentum = seen / float(self.samples)
        self.mean += momentum * (features.mean(dim=0) - self.mean)
        self.square += momentum * (features.square().mean(dim=0) - self.square)

    def clear(self) -> None:
        """Begin with a new domain."""
        self.samples.zero_()
