"""source-only: go on learning the source, take nothing from the query."""

from torch import Tensor
from torch.nn import functional as F

from crodobo.learner import Learner
from crodobo.methods.base import Method
from crodobo.prediction import Adaptation
from crodobo.query import Query


class SourceOnly(Method):
    """One source batch per query and no adaptation: what every adapting method has to beat.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source
    >>> method = SourceOnly(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> with Query(torch.rand(3, 1, 32, 32)) as query:
    ...     len(method.step(query).labels)
    3
    """

    name = "source-only"

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        def learn(learner: Learner) -> tuple[bool, Tensor]:
            batch = self.source.bootstrap(len(images), learner.generator)
            logits = learner.forward(self.augment.weak(batch.images, learner.generator))
            return learner.update(F.cross_entropy(logits, batch.labels)), batch.indices

        learned = self.engine.map(learn, self.learners)
        return Adaptation(
            skipped=sum(not updated for updated, _ in learned), bootstrap=tuple(drawn for _, drawn in learned)
        )
