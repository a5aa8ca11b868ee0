"""Settings of a run over a benchmark."""

from typing import ClassVar

from pydantic import field_validator

from crodobo.config import Positive, Seed, SessionSettings
from crodobo.data.order import full_name


class RunSettings(SessionSettings):
    """One method over one benchmark's stream."""

    queries: Positive | None = None  # None: the whole stream
    stream: str = "random"  # or by-class, dirichlet(α), drift
    stream_seed: Seed | None = None  # None: the run's seed

    # A run's settings decide its predictions, not only its learners.
    IDENTIFYING: ClassVar[tuple[str, ...]] = (
        *SessionSettings.IDENTIFYING,
        *("query_size", "queries", "stream", "stream_seed"),
    )
    FREE_OPTIONS: ClassVar[tuple[str, ...]] = ("parallel", "threads", "burn")
    FOLDER: ClassVar[tuple[str, ...]] = ("out",)
    PRIVATE: ClassVar[bool] = False

    @field_validator("stream")
    @classmethod
    def _name_of_an_order(cls, name: str) -> str:
        return full_name(name)

    @property
    def order_seed(self) -> int:
        """The seed of the stream's order."""
        return self.options.seed if self.stream_seed is None else self.stream_seed
