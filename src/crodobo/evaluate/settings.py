"""Settings of a run over a benchmark, and of many runs."""

from typing import Annotated

from pydantic import BeforeValidator, field_validator

from crodobo.config import Positive, Seed, SessionSettings, Settings, setting


def _split(given: object) -> object:
    return given.split(",") if isinstance(given, str) else given


class RunSettings(SessionSettings):
    """One method over one benchmark's stream."""

    TITLE = "Stream"

    queries: Positive | None = setting(None, "End the stream after this many; all if not set.")
    stream: str = setting(
        "random",
        "Order of the target: random; by-class; dirichlet(α), classes in bursts, stronger with a smaller α; or drift, "
        "classes come and go slowly.",
        metavar="ORDER",
    )
    stream_seed: Seed | None = setting(None, "Seed of that order; the seed of the run if not set.")

    # A run's settings decide its predictions, not only its learners.
    IDENTIFYING = (*SessionSettings.IDENTIFYING, "query_size", "queries", "stream", "stream_seed")
    FREE_OPTIONS = ("parallel", "threads", "burn")
    FOLDER = ("out",)
    PRIVATE = False

    @field_validator("stream")
    @classmethod
    def _name_of_an_order(cls, name: str) -> str:
        from crodobo.data.order import full_name  # imports torch, which the command line's help does not need

        return full_name(name)

    @property
    def order_seed(self) -> int:
        """The seed of the stream's order."""
        return self.options.seed if self.stream_seed is None else self.stream_seed


class ComparisonSettings(Settings):
    """Which runs a comparison or a study consists of."""

    TITLE = "Comparison"

    methods: str = setting(
        "all", "all, paper (the paper's six, source-only and crodobo), or names separated by commas.", metavar="NAMES"
    )
    seeds: Annotated[tuple[int, ...], BeforeValidator(_split)] = setting(
        (0, 1, 2), "Seeds, separated by commas; every method runs once with each.", metavar="SEEDS"
    )
    jobs: Positive | None = setting(None, "Processes at a time; all cores if not set.")
    offline: bool = setting(False, "Also run the offline protocol where the paper reports it. Takes long.")
    epochs: Positive = setting(10, "Epochs of the offline protocol.")
