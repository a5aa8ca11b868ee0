"""CDAN+E: CDAN with entropy conditioning."""

from crodobo.methods.cdan import CDAN, CDANSettings


class CDANESettings(CDANSettings):
    """CDAN's settings, with entropy weights."""

    entropy_weights: bool = True


class CDANE(CDAN):
    """CDAN in which confident samples count up to twice as much.

        ℓ = ℓ_s + w · BCE(D(GRL(f ⊗ p)))
        each sample weighted by 1 + e^(−H(p)), normalised within its domain

    **Keeps.** Nothing of a query. Each learner has its own discriminator.

    **Use it** instead of `cdan` when many predictions are uncertain: those are aligned last.

    **Reference.** Long, Cao, Wang and Jordan, *Conditional Adversarial Domain Adaptation*, NeurIPS 2018.
    """

    name = "cdan-e"
    Settings = CDANESettings
