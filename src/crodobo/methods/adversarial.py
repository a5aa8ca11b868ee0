"""What the adversarial baselines share: a part of its own for each learner, and a reversal that sets in slowly."""

from abc import abstractmethod
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor, nn

from crodobo.config import MethodSettings, NonNegative
from crodobo.losses import ramp, reverse_gradient
from crodobo.methods.alignment import Alignment, AlignmentSettings
from crodobo.nn.learner import Learner


class AdversarialSettings(AlignmentSettings):
    """How strong the reversed gradient becomes, and a momentum that a game of two can bear."""

    ceiling: NonNegative = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.5


class Adversarial(Alignment):
    """A learner and its adversary in one step: the gradient is turned round where it enters the features.

    Momentum keeps both going where the other has been, and they circle each other: with Adam's usual 0.9 these methods
    fall below going on with the source alone; see docs/compare.md.
    """

    Settings: ClassVar[type[MethodSettings]] = AdversarialSettings
    settings: AdversarialSettings

    @abstractmethod
    def make_adversary(self, features: int, classes: int) -> nn.Module:
        """The part that the learner plays against, on so many features."""

    def prepare(self, learner: Learner) -> None:
        learner.attach("adversary", lambda: self.make_adversary(learner.network.width, len(self.source.classes)))
        learner.set_momentum(self.settings.momentum)

    def reverse(self, features: Tensor) -> Tensor:
        """The features with their gradient reversed, by as much as the schedule has come to."""
        return reverse_gradient(features, ramp(self.progress, self.settings.ceiling))


def discriminator(inputs: int, hidden: int = 1024) -> nn.Module:
    """Features → one logit: is it the source?"""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0)
    )
