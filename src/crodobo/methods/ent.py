"""ENT: minimise the entropy of the query's predictions."""

from torch import Tensor

from crodobo.losses import entropy
from crodobo.methods.alignment import Alignment
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class ENT(Alignment):
    """Entropy minimisation: push the decision boundary away from the query; the source keeps the classes in place.

        ℓ = ℓ_s + w · mean H(p_t)

    **Keeps.** Nothing of a query.

    **Use it** when predictions are mostly right from the start. Entropy is also minimal if everything is one class, so
    the method collapses on streams whose classes come in bursts.

    **Reference.** Grandvalet and Bengio, *Semi-supervised Learning by Entropy Minimization*, NeurIPS 2004; as a
    baseline of adaptation in Saito et al., *Semi-supervised Domain Adaptation via Minimax Entropy*, ICCV 2019.
    """

    name = "ent"

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        return entropy(target.logits)
