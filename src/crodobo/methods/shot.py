"""SHOT: fit the target's features to the source's frozen classifier."""

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import MethodSettings, NonNegative
from crodobo.core.pixels import Images
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.losses import diversity, entropy
from crodobo.methods.offline import Offline, describe_all
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class SHOTSettings(MethodSettings):
    """The weight of the pseudo-labels."""

    pseudo_label_weight: NonNegative = 0.3


class SHOT(Offline):
    """Source hypothesis transfer: the classifier stays, the features adapt to it.

        ℓ = mean H(p) − H(mean p) + 0.3 · CE(ŷ, p)

    At the start of each epoch every target sample gets the label of the nearest of C centroids. The centroids are the
    means of all target features, weighted by their predictions. A second round uses the means of the labelled samples.

    **Keeps.** A pseudo-label for every target sample, made from all samples at once, so it needs the whole target.

    **Use it** when the target may be stored and the source may not.

    **Reference.** Liang, Hu and Feng, *Do We Really Need to Access the Source Data? Source Hypothesis Transfer for
    Unsupervised Domain Adaptation*, ICML 2020.

    Parameters
    ----------
    pseudo_label_weight
        Weight of the cross-entropy to the centroids' pseudo-labels.
    """

    name = "shot"
    Settings = SHOTSettings
    settings: SHOTSettings

    def prepare(self, learner: Learner) -> None:
        learner.network.classifier.requires_grad_(False)

    def survey(self, images: Images) -> None:
        self.pseudo_labels = self.engine.map(
            lambda learner: centroid_labels(describe_all(learner, images)), self.learners
        )

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))

        def learn(learner: Learner, labels: Tensor) -> bool:
            logits = learner.forward(weak)
            loss = self.settings.pseudo_label_weight * F.cross_entropy(logits, labels[indices])
            return learner.update(entropy(logits) + diversity(logits) + loss)

        return Adaptation(skipped=self.engine.map(learn, self.learners, self.pseudo_labels).count(False))


def centroid_labels(target: Encoded) -> Tensor:
    """The class of the nearest centroid by cosine, in two rounds: soft centroids, then centroids of the new labels.

    >>> features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 0.1], [0.0, 2.0], [0.1, 0.0]])
    >>> centroid_labels(Encoded(features, logits))
    tensor([0, 0, 1, 1])
    """
    # With a constant appended, the length of a feature vector counts too, not only its direction.
    features = F.normalize(torch.cat([target.features, torch.ones(len(target.features), 1)], dim=1), dim=1)
    membership = target.probabilities
    classes = membership.shape[1]
    labels = target.logits.argmax(dim=1)
    present = torch.bincount(labels, minlength=classes) > 0
    for _ in range(2):
        centroids = membership.T @ features / (membership.sum(dim=0)[:, None] + 1e-8)
        similarity = features @ F.normalize(centroids, dim=1).T
        labels = similarity.masked_fill(~present, -torch.inf).argmax(dim=1)
        membership = F.one_hot(labels, classes).to(features.dtype)
    return labels
