"""CDAN: DANN with a discriminator that also sees the predicted class."""

import torch
from torch import Tensor, nn

from crodobo.losses import domain_confusion, entropies
from crodobo.methods.adversarial import Adversarial, AdversarialSettings, discriminator
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class CDANSettings(AdversarialSettings):
    """Whether confident samples count more."""

    entropy_weights: bool = False


class CDAN(Adversarial):
    """Conditional domain-adversarial network: the discriminator sees the product of features and predictions.

        ℓ = ℓ_s + w · BCE(D(GRL(f ⊗ p))),  p without gradient

    With entropy weights (`cdan-e`) a sample has the weight 1 + e^(−H(p)), normalised within its domain.

    **Keeps.** Nothing of a query. Each learner has its own discriminator.

    **Use it** when each class should be aligned with its own counterpart.

    **Reference.** Long, Cao, Wang and Jordan, *Conditional Adversarial Domain Adaptation*, NeurIPS 2018.

    Parameters
    ----------
    entropy_weights
        Whether confident samples count more.
    """

    name = "cdan"
    Settings = CDANSettings
    settings: CDANSettings

    def make_adversary(self, features: int, classes: int) -> nn.Module:
        return discriminator(features * classes)

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        logits = self.judge(learner, conditioned(source), conditioned(target))
        if not self.settings.entropy_weights:
            return domain_confusion(*logits)
        weights = [1 + torch.exp(-entropies(each.logits.detach())) for each in (source, target)]
        return domain_confusion(*logits, *weights)


def conditioned(encoded: Encoded) -> Tensor:
    """The outer product of features and predictions: samples × (features · classes)."""
    return torch.einsum("bf,bc->bfc", encoded.features, encoded.probabilities.detach()).flatten(1)
