"""bn-statistics: the frozen model with the BatchNorm statistics of each query."""

from typing import ClassVar

from crodobo.config import MethodSettings, Norm
from crodobo.methods.no_adaptation import NoAdaptation, NoAdaptationSettings


class BNStatisticsSettings(NoAdaptationSettings):
    """Predict with the statistics of the query."""

    norm: Norm = "query"


class BNStatistics(NoAdaptation):
    """Normalise with the query's own mean and variance instead of the source's; no weight changes.

        p = softmax h(f(x)),  BatchNorm with the query's statistics

    **Keeps.** Nothing: the statistics are gone with the query.

    **Use it** when a network has BatchNorm, queries are large and of mixed classes, and nothing may be learned. A query
    of one has no statistics and is predicted as by `no-adaptation`; a query of one class has misleading ones.

    **Reference.** Nado et al., *Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift*,
    2020; Schneider et al., *Improving Robustness against Common Corruptions by Covariate Shift Adaptation*, NeurIPS
    2020.

    Examples
    --------
    >>> import torch
    >>> from crodobo import Source, get_method
    >>> get_method("bn-statistics")(Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1]), warmup=0).settings.norm
    'query'
    """

    name = "bn-statistics"
    Settings: ClassVar[type[MethodSettings]] = BNStatisticsSettings
