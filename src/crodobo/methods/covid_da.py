"""COVID-DA*: domain-adversarial features, several classifiers, focal loss."""

import torch
from torch import Tensor, nn

from crodobo.config import MethodSettings, NonNegative, Positive
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.losses import domain_confusion, focal, ramp, reverse_gradient
from crodobo.methods.adversarial import Momentum, discriminator
from crodobo.methods.offline import Offline
from crodobo.nn.learner import Learner


class COVIDDASettings(MethodSettings):
    """The number of classifiers and the weights of the losses."""

    classifiers: Positive = 2
    gamma: NonNegative = 2.0
    adversarial_weight: NonNegative = 1.0
    agreement_weight: NonNegative = 1.0
    momentum: Momentum = 0.5


class COVIDDA(Offline):
    """Domain-adversarial alignment for rare classes: focal loss, and classifiers that must agree on the target.

        ℓ = mean_m focal(h_m(f_s), y_s) + BCE(D(GRL(f))) + mean_m ‖p_m(f_t) − p̄(f_t)‖₁
        p̄ the classifiers' mean

    The original also learns from some labelled target images and has no public code. The version in the paper's
    comparison, marked by a star, does without them. This follows its description. The network's own classifier
    predicts.

    **Keeps.** The whole target, for all epochs.

    **Use it** when some classes are rare, as in screening, and the target may be stored.

    **Reference.** Zhang et al., *COVID-DA: Deep Domain Adaptation from Typical Pneumonia to COVID-19*, 2020.

    Parameters
    ----------
    classifiers
        The number of classifiers, including the network's own.
    gamma
        Focusing parameter of the focal loss.
    adversarial_weight, agreement_weight
        Weights of the discriminator's loss and of the classifiers' disagreement.
    momentum
        Adam's β₁, for the learner and its adversary.
    """

    name = "covid-da"
    Settings = COVIDDASettings
    settings: COVIDDASettings

    def prepare(self, learner: Learner) -> None:
        features, classes = learner.network.width, len(self.source.classes)
        learner.attach("adversary", lambda: discriminator(features))
        others = range(self.settings.classifiers - 1)
        learner.attach("classifiers", lambda: nn.ModuleList(nn.Linear(features, classes) for _ in others))
        learner.set_momentum(self.settings.momentum)

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        weak = query.own(self.augment.weak(images, self.generator))
        updated = self.engine.map(lambda learner: self.learn(learner, weak), self.learners)
        return Adaptation(skipped=updated.count(False))

    def learn(self, learner: Learner, weak: Tensor) -> bool:
        """One step on the sum of the three losses."""
        batch = self.draw_source(learner, len(weak))
        source, target = learner.encode(batch.images), learner.encode(weak)
        others, discriminate = learner.part("classifiers"), learner.part("adversary")
        assert isinstance(others, nn.ModuleList)
        on_source = [source.logits, *(classify(source.features) for classify in others)]
        on_target = [target.logits, *(classify(target.features) for classify in others)]
        supervised = torch.stack([focal(logits, batch.labels, self.settings.gamma) for logits in on_source]).mean()
        reversed_features = (reverse_gradient(each.features, ramp(self.progress)) for each in (source, target))
        confusion = self.settings.adversarial_weight * domain_confusion(*map(discriminate, reversed_features))
        agreement = self.settings.agreement_weight * disagreement(torch.stack(on_target))
        return learner.update(supervised + confusion + agreement)


def disagreement(logits: Tensor) -> Tensor:
    """L1 distance of the classifiers' probabilities to their mean, averaged over classifiers and samples.

    >>> round(float(disagreement(torch.tensor([[[99.0, 0.0]], [[0.0, 99.0]]]))), 3)
    1.0
    """
    probabilities = torch.softmax(logits, dim=2)
    return (probabilities - probabilities.mean(dim=0)).abs().sum(dim=2).mean()
