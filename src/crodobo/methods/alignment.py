"""Base of the paper's baselines: a source batch, the query, and a loss that aligns their features."""

from abc import abstractmethod

from torch import Tensor
from torch.nn import functional as F

from crodobo.config import MethodSettings, NonNegative
from crodobo.core.prediction import Adaptation
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

        def learn(learner: Learner) -> tuple[bool, Tensor]:
            batch = self.source.bootstrap(len(images), learner.generator)
            source = learner.encode(self.augment.weak(batch.images, learner.generator))
            target = learner.encode(weak)
            loss = F.cross_entropy(source.logits, batch.labels)
            loss = loss + self.settings.weight * self.alignment(learner, source, target)
            return learner.update(loss), batch.indices

        learned = self.engine.map(learn, self.learners)
        return Adaptation(
            skipped=sum(not updated for updated, _ in learned), bootstrap=tuple(drawn for _, drawn in learned)
        )
