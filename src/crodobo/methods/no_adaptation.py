"""no-adaptation: the model after its training on the source."""

from torch import Tensor

from crodobo.config import MethodSettings, Norm
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.methods.base import Method


class NoAdaptationSettings(MethodSettings):
    """Predict with the source's statistics."""

    norm: Norm = "running"


class NoAdaptation(Method):
    """A frozen model, as most deployed models are.

        p = softmax h(f(x)),  BatchNorm with the source's statistics

    **Keeps.** Nothing. It also learns nothing.

    **Use it** as the lower bound that every other method must beat.

    **Reference.** None. It is common practice.
    """

    name = "no-adaptation"
    learns = False
    Settings = NoAdaptationSettings

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        return Adaptation()
