"""What a service is made of."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny

from crodobo.config import DataSettings, ImageSize, MethodSettings, NonNegative, Positive, Settings

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServeSettings(Settings):
    """Which model is served, how requests become queries, and how many there may be."""

    options: SerializeAsAny[MethodSettings]
    state: Path
    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_.-]{1,64}\z")] = "crodobo"
    benchmark: str = "glyphs"
    method: str = "crodobo"
    data: DataSettings | None = None
    image_size: ImageSize | None = None
    cache_size: NonNegative = 50.0  # gigabytes
    query_size: Positive = 64
    max_wait: NonNegative = 0.05  # seconds that a query waits to be filled
    queue: Positive = 128  # requests in the house
    deadline: Seconds = 30.0  # until a request's query begins
    max_body: Positive = 64 * 2**20  # bytes
    max_pixels: Positive = 40_000_000  # of an image before it is brought to the model's size
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # requests a second of one client
    checkpoint_every: Positive = 10
    prove_every: Positive | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that decide what the learners are; with others they cannot go on."""
        data = self.model_dump(mode="json", include={"benchmark", "method", "image_size", "data", "options"})
        for free in ("parallel", "threads", "burn", "order"):
            data["options"].pop(free)
        return data
