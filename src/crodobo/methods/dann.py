"""DANN: features from which a discriminator cannot tell the domain."""

from torch import Tensor, nn

from crodobo.losses import domain_confusion
from crodobo.methods.adversarial import Adversarial, discriminator
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class DANN(Adversarial):
    """Domain-adversarial network: a discriminator learns to separate the domains, the features learn to fool it.

        ℓ = ℓ_s + w · BCE(D(GRL(f)))
        GRL's coefficient: 2 / (1 + e^(−10·progress)) − 1;  D: 1024-1024-1

    Progress is the processed share of the stream, or of the first 100 queries if its length is unknown.

    **Keeps.** Nothing of a query. Each learner has its own discriminator.

    **Use it** when the stream is long enough for the discriminator to learn. A few dozen queries are not.

    **Reference.** Ganin et al., *Domain-Adversarial Training of Neural Networks*, JMLR 2016.
    """

    name = "dann"

    def make_adversary(self, features: int, classes: int) -> nn.Module:
        return discriminator(features)

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        return domain_confusion(*self.judge(learner, source.features, target.features))
