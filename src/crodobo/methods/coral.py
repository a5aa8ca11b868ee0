"""CORAL: align the covariances of source and target features."""

from torch import Tensor

from crodobo.losses import coral
from crodobo.methods.alignment import Alignment
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class CORAL(Alignment):
    """Correlation alignment: the distance between the feature covariances of the source batch and the query.

        ℓ = ℓ_s + w · ‖C_s − C_t‖²_F / 4d²

    The bottleneck's BatchNorm normalises source and query separately, which already aligns the diagonals. With 64
    samples in 256 dimensions the rest is mostly noise, so expect little gain.

    **Keeps.** Nothing of a query.

    **Use it** when the domains differ in second-order statistics, queries are large and features are few.

    **Reference.** Sun and Saenko, *Deep CORAL: Correlation Alignment for Deep Domain Adaptation*, ECCV workshops 2016.
    """

    name = "coral"

    def alignment(self, learner: Learner, source: Encoded, target: Encoded) -> Tensor:
        return coral(source.features, target.features)
