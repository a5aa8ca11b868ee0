"""Base of the paper's baselines: a source batch, the query, and a loss that aligns their features."""

from abc import abstractmethod

from torch import Tensor
from torch.nn import functional as F

from crodobo.config import MethodSettings, NonNegative
from crodobo.core.prediction import Adaptation, join_adaptations
from crodobo.core.query import Query
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class AlignmentSettings(MethodSettings):
    """The weight of the alignment relative to the source's cross-entropy."""

    weight: NonNegative = 1.0


class Alignment(Method):
    """One step per query on ``ℓ_s + w · alignment``. Subclasses define the alignment.

    Parameters
    ----------
    weight
        Weight w of the alignment.
    """

    protocols = ("online", "offline")
    Settings = AlignmentSettings
    settings: AlignmentSettings

    @abstractmethod
    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        """The alignment loss of a source batch and the query."""

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))

        def learn(learner: Learner) -> Adaptation:
            batch = self.draw_source(learner, len(images), query, images)
            source, target = learner.encode(batch.images), learner.encode(weak)
            loss = F.cross_entropy(source.logits, batch.labels)
            loss = loss + self.settings.weight * self.alignment(learner, source, target)
            return Adaptation(skipped=not learner.update(loss), bootstrap=(batch.indices,))

        return join_adaptations(self.engine.map(learn, self.learners))
