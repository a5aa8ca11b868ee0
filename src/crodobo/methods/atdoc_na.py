"""ATDOC-NA: label each target sample by its nearest neighbours."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import MethodSettings, NonNegative, Positive
from crodobo.core.pixels import Images
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.errors import BadSource
from crodobo.methods.offline import Offline, describe_all
from crodobo.nn.learner import Learner


class ATDOCSettings(MethodSettings):
    """The number of neighbours that vote, and the final weight of the vote."""

    neighbours: Positive = 5
    vote_weight: NonNegative = 0.2


class Bank(NamedTuple):
    """Normalised features and predictions of all target samples."""

    features: Tensor
    probabilities: Tensor


class ATDOCNA(Offline):
    """Auxiliary target domain-oriented classifier, neighbourhood aggregation.

        ℓ = ℓ_s + 0.2 · progress · Σ_b w_b CE(ŷ_b, p_b) / Σ_b w_b
        ŷ_b, w_b = the most probable class in the mean prediction of the 5 nearest neighbours, and its probability

    **Keeps.** Features and predictions of every target sample.

    **Use it** when the target may be stored. It is the strongest offline method in the paper.

    **Reference.** Liang, Hu and Feng, *Domain Adaptation with Auxiliary Target Domain-Oriented Classifier*, CVPR 2021.

    Parameters
    ----------
    neighbours
        The number of neighbours that vote.
    vote_weight
        The final weight of the vote's cross-entropy.
    """

    name = "atdoc-na"
    Settings = ATDOCSettings
    settings: ATDOCSettings
    banks: list[Bank] | None = None

    def survey(self, images: Images) -> None:
        if len(images) < 2:
            raise BadSource("atdoc-na labels samples by their neighbours, so it needs at least two target samples.")
        if self.banks is None:
            described = self.engine.map(lambda learner: describe_all(learner, images), self.learners)
            self.banks = [Bank(F.normalize(each.features, dim=1), each.probabilities) for each in described]

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))
        weight = self.settings.vote_weight * self.progress
        assert self.banks is not None

        def learn(learner: Learner, bank: Bank) -> bool:
            batch = self.draw_source(learner, len(images))
            source, target = learner.forward(batch.images), learner.encode(weak)
            features = F.normalize(target.features.detach(), dim=1)
            share, labels = vote(features, bank, indices, self.settings.neighbours).max(dim=1)
            losses = F.cross_entropy(target.logits, labels, reduction="none")
            loss = F.cross_entropy(source, batch.labels) + weight * (share * losses).sum() / share.sum()
            updated = learner.update(loss)
            if updated:
                bank.features[indices] = features
                bank.probabilities[indices] = target.probabilities.detach()
            return updated

        return Adaptation(skipped=self.engine.map(learn, self.learners, self.banks).count(False))


def vote(features: Tensor, bank: Bank, indices: Tensor, neighbours: int) -> Tensor:
    """The mean prediction of each sample's nearest neighbours in the bank, without the sample itself.

    >>> bank = Bank(torch.eye(3), torch.tensor([[1.0, 0.0], [0.8, 0.2], [0.0, 1.0]]))
    >>> vote(torch.tensor([[0.9, 0.4, 0.1]]), bank, torch.tensor([0]), neighbours=1).argmax(dim=1)
    tensor([0])
    """
    similarity = features @ bank.features.T
    similarity[torch.arange(len(indices)), indices] = -torch.inf
    nearest = similarity.topk(min(neighbours, len(bank.features) - 1), dim=1).indices
    return bank.probabilities[nearest].mean(dim=1)
