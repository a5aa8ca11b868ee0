"""What a session gives back for a query."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from crodobo.core.prediction import Prediction

Commit = Callable[[Prediction, int, float], None]  # takes the prediction, the query's number and the seconds it took


@dataclass(frozen=True)
class Processed:
    """A query that was predicted and burned: its prediction, its receipt, its number, and how long it took.

    An early answer names the receipt that will be written when the query is burned.

    `saved` is done when what was learned is on disk. It is None where no checkpoint was due, or it is written already.
    """

    prediction: Prediction
    receipt: str
    query: int
    seconds: float
    saved: "Future[None] | None" = None
