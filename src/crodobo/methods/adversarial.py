"""Base of the adversarial methods: an adversary for each learner, and a gradient reversal that grows slowly."""

from abc import abstractmethod
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from crodobo.config import NonNegative
from crodobo.losses import ramp, reverse_gradient
from crodobo.methods.alignment import Alignment, AlignmentSettings
from crodobo.nn.learner import Learner

Momentum = Annotated[float, Field(ge=0, lt=1)]


class AdversarialSettings(AlignmentSettings):
    """The final strength of the reversed gradient, and Adam's momentum."""

    ceiling: NonNegative = 1.0
    momentum: Momentum = 0.5


class Adversarial(Alignment):
    """Updates a learner and its adversary in one step: the gradient is reversed where it enters the features.

    Momentum makes the two circle each other. With Adam's usual 0.9 these methods fall below `source-only`; see
    docs/compare.md.

    Parameters
    ----------
    ceiling
        The final coefficient of the reversal.
    momentum
        Adam's β₁ on the stream, for the learner and its adversary.
    """

    Settings = AdversarialSettings
    settings: AdversarialSettings

    @abstractmethod
    def make_adversary(self, features: int, classes: int) -> nn.Module:
        """Make the adversary for this number of features."""

    def prepare(self, learner: Learner) -> None:
        learner.attach("adversary", lambda: self.make_adversary(learner.network.width, len(self.source.classes)))
        learner.set_momentum(self.settings.momentum)

    def judge(self, learner: Learner, *features: Tensor) -> list[Tensor]:
        """The adversary's logits for features whose gradient is reversed, scaled by the schedule."""
        adversary, coefficient = learner.part("adversary"), ramp(self.progress, self.settings.ceiling)
        return [adversary(reverse_gradient(each, coefficient)) for each in features]


def discriminator(inputs: int, hidden: int = 1024) -> nn.Module:
    """Features → one logit, high for the source."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0)
    )
