"""Settings of a service."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from crodobo.config import NonNegative, Positive, SessionSettings

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServeSettings(SessionSettings):
    """Which model is served, how requests become queries, and how many there may be."""

    state: Path
    name: Annotated[str, Field(pattern=r"\A[A-Za-z0-9_.-]{1,64}\z")] = "crodobo"
    max_wait: NonNegative = 0.05  # seconds that a query waits to be filled
    queue: Positive = 128  # requests at a time
    deadline: Seconds = 30.0  # until a request's query begins
    max_body: Positive = 64 * 2**20  # bytes
    max_pixels: Positive = 40_000_000  # of an image before it is resized
    rate: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None  # requests a second of one client
