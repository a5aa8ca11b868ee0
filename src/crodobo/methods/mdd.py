"""MDD: features on which a second classifier cannot disagree with the first."""

from torch import Tensor, nn

from crodobo.config import NonNegative
from crodobo.losses import margin_disparity
from crodobo.methods.adversarial import Adversarial, AdversarialSettings
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class MDDSettings(AdversarialSettings):
    """The margin, and a weak reversal."""

    ceiling: NonNegative = 0.1
    gamma: NonNegative = 4.0


class MDD(Adversarial):
    """Margin disparity discrepancy: an adversarial classifier agrees on the source and disagrees on the target.

        ℓ = ℓ_s + w · (γ · CE(h'(GRL f_s), ŷ_s) − log(1 − softmax h'(GRL f_t))[ŷ_t])
        ŷ the main classifier's predictions, h' the adversarial one

    The reversal rises only to 0.1: with a coefficient of 1 the features diverge.

    **Keeps.** Nothing of a query. Each learner has its own adversarial classifier.

    **Use it** when a bound on the target error matters more than the last point of accuracy.

    **Reference.** Zhang, Liu, Long and Jordan, *Bridging Theory and Algorithm for Domain Adaptation*, ICML 2019.

    Parameters
    ----------
    gamma
        The margin factor γ.
    """

    name = "mdd"
    Settings = MDDSettings
    settings: MDDSettings

    def make_adversary(self, features: int, classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(features, 1024), nn.ReLU(), nn.Linear(1024, classes))

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        on_source, on_target = self.judge(learner, source.features, target.features)
        source_labels, target_labels = source.logits.argmax(dim=1), target.logits.argmax(dim=1)
        return margin_disparity(on_source, source_labels, on_target, target_labels, self.settings.gamma)
