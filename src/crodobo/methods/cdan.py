"""CDAN: like DANN, with a discriminator that sees which class a feature is taken for."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from crodobo.config import MethodSettings
from crodobo.losses import domain_confusion, entropies
from crodobo.methods.adversarial import Adversarial, AdversarialSettings, discriminator
from crodobo.nn.learner import Encoded, Learner


class CDANSettings(AdversarialSettings):
    """Whether sure samples count more."""

    entropy_weights: bool = False


class CDAN(Adversarial):
    """Conditional domain-adversarial network: the discriminator is given features and predictions multiplied out.

        ℓ = ℓ_s + w · BCE(D(GRL(f ⊗ p))),  p without gradient

    With entropy weights (`cdan-e`) a sample counts 1 + e^(−H(p)), as a share of its domain.

    **Keeps.** Nothing of a query; each learner has a discriminator of its own.

    **Use it** when classes lie apart and each should be aligned with its own counterpart.

    **Reference.** Long, Cao, Wang and Jordan, *Conditional Adversarial Domain Adaptation*, NeurIPS 2018.

    Parameters
    ----------
    weight
        Weight w of the discriminator's loss.
    ceiling
        What the reversal's coefficient rises to.
    momentum
        Adam's β₁ on the stream, for the learner and its adversary.
    entropy_weights
        Let sure samples count more.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source, get_method
    >>> method = get_method("cdan")(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0)
    >>> with Query(torch.rand(3, 1, 32, 32)) as query:
    ...     len(method.step(query).labels)
    3
    """

    name = "cdan"
    Settings: ClassVar[type[MethodSettings]] = CDANSettings
    settings: CDANSettings

    def make_adversary(self, features: int, classes: int) -> nn.Module:
        return discriminator(features * classes)

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        tell = learner.part("adversary")
        logits = [tell(self.reverse(conditioned(each))) for each in (source, target)]
        if not self.settings.entropy_weights:
            return domain_confusion(*logits)
        weights = [1 + torch.exp(-entropies(each.logits.detach())) for each in (source, target)]
        return domain_confusion(*logits, *weights)


def conditioned(encoded: Encoded) -> Tensor:
    """Features times predictions, every pair of them: samples × (features · classes)."""
    return torch.einsum("bf,bc->bfc", encoded.features, encoded.probabilities.detach()).flatten(1)
