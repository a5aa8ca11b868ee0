"""source-only: keep learning the source, learn nothing from the query."""

from torch import Tensor
from torch.nn import functional as F

from crodobo.core.prediction import Adaptation, join_adaptations
from crodobo.core.query import Query
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner


class SourceOnly(Method):
    """One source batch per query and no adaptation.

        ℓ = ℓ_s

    **Keeps.** Nothing of a query. It learns nothing from it, but predicts partly with the query's statistics.

    **Use it** as the baseline that shows the gain from adapting.

    **Reference.** The baseline of that name in Yang et al., *Burn After Reading: Online Adaptation for Cross-domain
    Streaming Data*, ECCV 2022.

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
    protocols = ("online", "offline")

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        def learn(learner: Learner) -> Adaptation:
            batch = self.draw_source(learner, len(images), query, images)
            updated = learner.update(F.cross_entropy(learner.forward(batch.images), batch.labels))
            return Adaptation(skipped=not updated, bootstrap=(batch.indices,))

        return join_adaptations(self.engine.map(learn, self.learners))
