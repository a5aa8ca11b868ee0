"""DAN: align the means of source and target features in a kernel space."""

from torch import Tensor

from crodobo.losses import mmd
from crodobo.methods.alignment import Alignment
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class DAN(Alignment):
    """Deep adaptation network: the maximum mean discrepancy between the features of the source batch and the query.

        ℓ = ℓ_s + w · MMD(f_s, f_t)
        five Gaussian kernels, σ² = 2^k · mean‖Δ‖², k = −3 … 1

    **Keeps.** Nothing of a query.

    **Use it** when the domains differ in style but not in class balance: matching the distributions also matches their
    class proportions.

    **Reference.** Long, Cao, Wang and Jordan, *Learning Transferable Features with Deep Adaptation Networks*,
    ICML 2015.
    """

    name = "dan"

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        return mmd(source.features, target.features)
