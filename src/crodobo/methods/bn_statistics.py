"""bn-statistics: the frozen model with each query's BatchNorm statistics."""

from crodobo.config import Norm
from crodobo.methods.no_adaptation import NoAdaptation, NoAdaptationSettings


class BNStatisticsSettings(NoAdaptationSettings):
    """Predict with the query's statistics."""

    norm: Norm = "query"


class BNStatistics(NoAdaptation):
    """Normalise with the query's own mean and variance instead of the source's; no weight changes.

        p = softmax h(f(x)),  BatchNorm with the query's statistics

    **Keeps.** Nothing.

    **Use it** when the network has BatchNorm, queries are large with mixed classes, and nothing may be learned. A query
    of one sample is predicted as by `no-adaptation`. A query of one class has misleading statistics.

    **Reference.** Nado et al., *Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift*,
    2020; Schneider et al., *Improving Robustness against Common Corruptions by Covariate Shift Adaptation*, NeurIPS
    2020.
    """

    name = "bn-statistics"
    Settings = BNStatisticsSettings
