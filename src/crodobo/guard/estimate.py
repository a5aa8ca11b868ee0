"""Estimator: how accurate the learners are on a stream, estimated without labels.

Learners that began apart make different mistakes, so the share of samples on which they agree is close to their
accuracy (Jiang et al., *Assessing Generalization of SGD via Disagreement*, ICLR 2022). How close depends on the
learners. It is measured on labelled samples of the source under shifts of growing strength:

    accuracy = agreement + a + b · agreement + c · confidence

The scatter around this gives the interval. It grows with the disagreement. The estimate is wrong if the learners make
the same mistakes, which no shift of the source may have shown. Where that is likely, the accuracy is unknown. So it is
if the last samples are of few classes, because what holds for all classes does not hold for each, and in short queries.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.core import pixels
from crodobo.core.prediction import Estimate, Prediction
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.class_mix import ClassMix
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average
from crodobo.views.shifts import shifts

RECENT, LEAST = 256, 64  # samples that an estimate covers, and the fewest for which there is one
SHORT = 32  # mean size of queries below which learners that were measured on full batches say too little
USED, BATCH = 256, 64  # samples of the source that are shifted, and how many at a time
RIDGE = 0.5  # how strongly the accuracy is drawn to the agreement, in batches
WIDTH = 1.64  # half of the interval in standard deviations: 90 % of a normal distribution
CERTAIN = 0.05  # disagreement that is added to all, because no agreement is certain
WIDE = 1 / 3  # share of the usual number of further classes that the last samples must have
LOWEST = 2 / 3  # estimate below which learners know so little that they may well share their mistakes
UNSEEN = 3.0  # standard deviations from which confidence and agreement do not fit together as in the source


class Estimator:
    """Estimates the accuracy on the last samples. `prior` is the class mix of the source.

    >>> estimator = Estimator(torch.tensor([0.5, 0.5]))
    >>> agreement = torch.linspace(0.3, 1, 16)
    >>> estimator.fit(agreement, 0.3 + 0.7 * agreement, agreement - 0.04)
    >>> estimator.add(Prediction(torch.tensor([[0.86, 0.14], [0.14, 0.86]] * 32), agreement=0.8))
    >>> round(estimator.estimate().accuracy, 2)
    0.76
    """

    def __init__(self, prior: Tensor) -> None:
        self.mix = ClassMix(len(prior), RECENT)  # of the predicted classes
        self.narrow = 1 / (1 + WIDE * (1 / float(prior.square().sum()) - 1))  # chance of two samples to be of a class
        # Samples, and the sums of their agreement, of their confidence, and of the size of their queries.
        self.recent = torch.zeros(4, dtype=torch.float64)
        self.weights = torch.zeros(3, dtype=torch.float64)  # of 1, agreement and confidence
        self.usual = torch.zeros(2, dtype=torch.float64)  # the confidence that goes with an agreement
        self.scatter = torch.zeros(2, dtype=torch.float64)  # variances of accuracy and confidence; 0 before the fit

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name."""
        fitted = {"weights": self.weights, "usual": self.usual, "scatter": self.scatter}
        return {"recent": self.recent, "mix": self.mix.numbers, **fitted}

    @property
    def calibrated(self) -> bool:
        """Whether the learners have been measured on the source."""
        return bool(self.scatter[0] > 0)

    def calibrate(self, learners: list[Learner], source: Source, engine: Engine) -> None:
        """Measure learners that have seen nothing of the stream on shifted samples of the source."""
        generator = torch.Generator().manual_seed(0)
        batches = torch.randperm(len(source), generator=generator)[:USED].split(BATCH)
        found = []
        for number, (shift, strength) in enumerate(shifts()):
            batch = batches[number % len(batches)]
            images = shift(pixels.to_unit(source.images[batch]), strength, generator)
            prediction = average(learners, engine, images, norm="query")
            right = (prediction.labels == source.labels[batch]).float().mean()
            found.append([prediction.agreement or 0.0, float(prediction.confidence.mean()), float(right)])
        agreement, confidence, accuracy = torch.tensor(found).T
        self.fit(agreement, confidence, accuracy)

    def fit(self, agreement: Tensor, confidence: Tensor, accuracy: Tensor) -> None:
        """Find the accuracy that goes with an agreement and a confidence. Where learners disagree, points scatter."""
        agreement, confidence, accuracy = agreement.double(), confidence.double(), accuracy.double()
        trust = 1 / disagreement(agreement)
        trust = trust / trust.mean()
        inputs = torch.stack([torch.ones_like(agreement), agreement, confidence], dim=1)
        self.weights.copy_(ridge(inputs, accuracy - agreement, trust))
        self.usual.copy_(ridge(inputs[:, :2], confidence - agreement, trust))
        free = len(agreement) - inputs.shape[1]
        missed = (accuracy - agreement - inputs @ self.weights, confidence - agreement - inputs[:, :2] @ self.usual)
        for place, each in enumerate(missed):
            self.scatter[place] = max(1e-6, float((each.square() / disagreement(agreement)).sum()) / free)

    def add(self, prediction: Prediction) -> None:
        """Count the samples of a query."""
        if prediction.agreement is None:
            return
        count = len(prediction.probabilities)
        means = torch.tensor(
            [1.0, prediction.agreement, float(prediction.confidence.mean()), count], dtype=torch.float64
        )
        self.recent *= max(0.0, min(1.0, (RECENT - count) / max(1.0, float(self.recent[0]))))
        self.recent += min(count, RECENT) * means
        self.mix.add(F.one_hot(prediction.labels, prediction.probabilities.shape[1]).float())

    @property
    def enough(self) -> bool:
        """Whether enough samples have been counted."""
        return float(self.recent[0]) >= LEAST

    def estimate(self) -> Estimate | None:
        """The accuracy on the last samples; None if it is unknown."""
        if not (self.enough and self.calibrated) or self.mix.same > self.narrow:
            return None
        _, agreement, confidence, size = self.recent / self.recent[0]
        if size < SHORT:
            return None
        doubt = disagreement(agreement)
        unusual = float(confidence - agreement - self.usual[0] - self.usual[1] * agreement)
        if abs(unusual) > UNSEEN * float((self.scatter[1] * doubt).sqrt()):
            return None
        inputs = torch.stack([torch.ones_like(agreement), agreement, confidence])
        middle, width = float(agreement + inputs @ self.weights), WIDTH * float((self.scatter[0] * doubt).sqrt())
        if middle < LOWEST:
            return None
        accuracy, low, high = (round(min(1.0, max(0.0, each)), 4) for each in (middle, middle - width, middle + width))
        return Estimate(accuracy, low, high)

    def clear(self) -> None:
        """Start again with the next sample."""
        self.recent.zero_()
        self.mix.clear()


def disagreement(agreement: Tensor) -> Tensor:
    """The share of samples on which the learners do not agree, and a little more."""
    return 1 - agreement + CERTAIN


def ridge(inputs: Tensor, wanted: Tensor, trust: Tensor) -> Tensor:
    """Weights of the inputs whose sum comes close to what is wanted, and that are small."""
    weighted = inputs.T * trust
    square = weighted @ inputs + RIDGE * torch.eye(inputs.shape[1], dtype=inputs.dtype)
    weights: Tensor = torch.linalg.solve(square, weighted @ wanted)
    return weights
