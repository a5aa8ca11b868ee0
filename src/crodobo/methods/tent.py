"""TENT: minimise the entropy of each query over the scales and shifts of the normalisation layers."""

from torch import Tensor

from crodobo.config import AboveZero, MethodSettings, Norm
from crodobo.core.prediction import Adaptation, join_adaptations
from crodobo.core.query import Query
from crodobo.errors import BadSettings
from crodobo.losses import entropy
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner
from crodobo.nn.normalisation import scales_and_shifts


class TENTSettings(MethodSettings):
    """Query statistics, and the learning rate on the stream (`lr` is for the warm-up)."""

    norm: Norm = "query"
    adapt_lr: AboveZero = 1e-3


class TENT(Method):
    """Test-time entropy minimisation: few weights, no source, no views.

        ℓ = mean H(p_t)
        over the scales and shifts of the normalisation layers, with the query's statistics

    **Keeps.** Nothing of a query.

    **Use it** when the source is not available and predictions are mostly right. It collapses if queries have few
    classes or few samples.

    **Reference.** Wang, Shelhamer, Liu, Olshausen and Darrell, *Tent: Fully Test-Time Adaptation by Entropy
    Minimization*, ICLR 2021.

    Parameters
    ----------
    adapt_lr
        Learning rate on the stream.
    """

    name = "tent"
    Settings = TENTSettings
    settings: TENTSettings

    def prepare(self, learner: Learner) -> None:
        weights = scales_and_shifts(learner.network)
        if not weights:
            needed = f"{self.name} learns scales and shifts of normalisation layers"
            problem = f"{needed}, and {self.settings.backbone} has none."
            raise BadSettings(problem, "Choose another backbone.", settings=("backbone",))
        learner.learn_only(weights, self.settings.adapt_lr)

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        return join_adaptations(self.engine.map(lambda learner: self.learn(learner, images), self.learners))

    def learn(self, learner: Learner, images: Tensor) -> Adaptation:
        """One step of one learner on the query."""
        return Adaptation(skipped=not learner.update(entropy(learner.forward(images))))
