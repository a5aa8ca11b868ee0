"""CroDoBo: cross-domain bootstrapping with exchanged pseudo-labels (section 3 of the paper)."""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import Fraction, MethodSettings, NonNegative, Positive
from crodobo.learner import Learner
from crodobo.losses import co_supervision, diversity, entropy
from crodobo.methods.base import Method
from crodobo.prediction import Adaptation
from crodobo.query import Query


class CroDoBoSettings(MethodSettings):
    """The paper's two hyperparameters, with its values for them."""

    learners: Positive = 2
    tau: Fraction = 0.95
    lam: NonNegative = 0.4


class Look(NamedTuple):
    """What a learner makes of the query's weak view before any update, and the source samples it met it with."""

    probabilities: Tensor
    bootstrap: Tensor


class CroDoBo(Method):
    """K learners, each on its own bootstrap of the source, supervise each other on the query.

    Each learner takes one step down ``ℓ_s + ℓ_t + ℓ_ent + λ ℓ_div``: cross-entropy on its source bootstrap, the
    peers' confident pseudo-labels on the query's strong view, and entropy and diversity of its own predictions.
    With one learner it is its own peer, which is the paper's ablation "w/o CroDoBo".

    Parameters
    ----------
    tau
        Confidence from which on a peer's pseudo-label is learned.
    lam
        Weight λ of the diversity term.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source
    >>> source = Source(torch.rand(20, 1, 32, 32), [0, 1] * 10)
    >>> method = CroDoBo(source, learners=2, warmup=1)
    >>> with Query(torch.rand(4, 1, 32, 32)) as query:
    ...     prediction = method.step(query)
    >>> prediction.probabilities.shape
    torch.Size([4, 2])
    """

    name = "crodobo"
    Settings: ClassVar[type[MethodSettings]] = CroDoBoSettings
    settings: CroDoBoSettings

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))
        strong = query.own(self.augment.strong(images, self.generator))

        # 3.2.1  Cross-domain bootstrapping: the query meets another source batch in each learner.
        looks = self.engine.map(lambda learner: self.look(learner, weak), self.learners)

        # 3.2.2  Co-supervision: all pseudo-labels are taken here, before any learner is updated.
        peers = average_of_peers([look.probabilities for look in looks])
        updated = self.engine.map(lambda learner, peer: self.update(learner, peer, strong), self.learners, peers)
        kept = torch.stack(peers).amax(dim=2) >= self.settings.tau
        return Adaptation(
            kept=float(kept.float().mean()),
            skipped=updated.count(False),
            bootstrap=tuple(look.bootstrap for look in looks),
        )

    def look(self, learner: Learner, weak: Tensor) -> Look:
        """ℓ_s on the learner's own bootstrap, ℓ_ent + λ ℓ_div on the weak view."""
        source = self.source.bootstrap(len(weak), learner.generator)
        source_logits = learner.forward(self.augment.weak(source.images, learner.generator))
        learner.accumulate(F.cross_entropy(source_logits, source.labels))

        logits = learner.forward(weak)
        learner.accumulate(entropy(logits) + self.settings.lam * diversity(logits))
        return Look(torch.softmax(logits.detach(), dim=1), source.indices)

    def update(self, learner: Learner, peer: Tensor, strong: Tensor) -> bool:
        """ℓ_t on the strong view, then one step down the sum of all four."""
        return learner.update(co_supervision(learner.forward(strong), peer, self.settings.tau))


def average_of_peers(probabilities: list[Tensor]) -> list[Tensor]:
    """For each learner the mean probabilities of all the others; a lone learner is its own peer.

    >>> average_of_peers([torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([1.0])])
    [tensor([0.7500]), tensor([0.5000]), tensor([0.2500])]
    """
    if len(probabilities) == 1:
        return probabilities
    return [torch.stack([other for other in probabilities if other is not own]).mean(dim=0) for own in probabilities]
