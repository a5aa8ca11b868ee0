"""single: the paper's ablation "w/o CroDoBo", one learner that is its own peer."""

from typing import Literal

from crodobo.methods.crodobo import CroDoBo, CroDoBoSettings


class SingleSettings(CroDoBoSettings):
    """CroDoBo's settings, with one learner."""

    learners: Literal[1] = 1


class Single(CroDoBo):
    """CroDoBo's objectives with one learner, without exchange of pseudo-labels.

        ℓ = ℓ_s + ℓ_t + ℓ_ent + λ ℓ_div,  with the learner's own pseudo-labels in ℓ_t

    **Keeps.** Nothing of a query.

    **Use it** when time or memory allow only one network. It costs half of `crodobo` and loses a point or two.

    **Reference.** The ablation "w/o CroDoBo" of Yang et al., *Burn After Reading: Online Adaptation for Cross-domain
    Streaming Data*, ECCV 2022.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Source
    >>> len(Single(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0).learners)
    1
    """

    name = "single"
    protected = False
    Settings = SingleSettings
