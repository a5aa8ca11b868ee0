"""continual: CroDoBo without the source."""

from pydantic import field_validator
from torch import Tensor

from crodobo.core.query import Query
from crodobo.core.source import SourceBatch
from crodobo.methods.crodobo import CroDoBo, CroDoBoSettings
from crodobo.methods.objective import parse_objectives
from crodobo.nn.learner import Learner


class ContinualSettings(CroDoBoSettings):
    """CroDoBo's settings, without MixMatch, which needs the source."""

    @field_validator("objective")
    @classmethod
    def check_objective(cls, text: str) -> str:
        if any(objective.mixes for objective in parse_objectives(text)):
            raise ValueError("mixmatch needs the source, which this method does not use")
        return text


class Continual(CroDoBo):
    """Continual CroDoBo: the learners learn the source first, then use only target objectives on the stream.

        ℓ = ℓ_t + ℓ_ent + λ ℓ_div

    The learners differ by the bootstraps of their warm-up, and exchange pseudo-labels.

    **Keeps.** Nothing of a query or of the source.

    **Use it** when the source is not available with the stream. Otherwise `crodobo` is better.

    **Reference.** The supplement of Yang et al., *Burn After Reading: Online Adaptation for Cross-domain Streaming
    Data*, ECCV 2022.
    """

    name = "continual"
    protected = False
    Settings = ContinualSettings

    def learn_source(self, learner: Learner, size: int, query: Query, images: Tensor) -> SourceBatch | None:
        return None
