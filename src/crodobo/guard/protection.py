"""Protection: what stands between a stream and the learners. This one lets everything through."""

from typing import Any

from torch import Tensor

from crodobo.core.prediction import Adaptation, Prediction
from crodobo.engine import Engine
from crodobo.guard.lesson import Lesson
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average


class Protection:
    """The moments of a query at which a protection may step in, in their order.

    `Guard` and `Watch` are subclasses.
    """

    follows = False  # whether the statistics of a query, and the source, are learned where the query is predicted only
    one_step = False  # whether no further steps are to be taken on the query
    answered = False  # whether the query is predicted before it is learned
    lesson = Lesson()  # what may be learned from the query

    def __init__(self, learners: list[Learner]) -> None:
        self.learners = learners

    def scale(self, samples: int, learned: int, largest: int, full: int) -> None:
        """Set how much a query counts: `learned` of its samples may be learned, `full` are a full batch."""
        for learner in self.learners:
            learner.share = samples / largest

    def before(self, images: Tensor, engine: Engine, learned: int) -> Adaptation:
        """Examine a query, of which `learned` samples may be learned, before it is learned."""
        return Adaptation()

    def note_weak(self, predictions: list[Tensor]) -> None:
        """Take the learners' predictions of the weak view, made while the query is learned."""

    def before_answer(self, images: Tensor, engine: Engine) -> None:
        """Prepare the prediction of a query that has been learned."""

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Examine the prediction of a query. Returns it, or a better one."""
        return prediction

    def after_more_steps(self, images: Tensor, engine: Engine) -> str | None:
        """Examine the learners after steps on a query that was answered. Says what was restored."""
        return None

    def end_query(self) -> None:
        """Forget what was found in a query."""

    def predict(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict images without learning."""
        return average(self.learners, engine, images)

    def predict_each(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict images without learning, each as if it were the only one."""
        return average(self.learners, engine, images, norm="running")

    def source_due(self, samples: int, full: int) -> int:
        """The size of the source batch to learn with these samples, if nothing is learned from them; 0 for none."""
        return min(full, samples)

    def measures_classes(self, step: int) -> bool:
        """Whether to measure what the source's classes do to the statistics."""
        return False

    def state(self) -> dict[str, Tensor]:
        """What is known of the stream, as tensors by name."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""

    def snapshot(self) -> tuple[Any, ...]:
        """What `state` leaves out. Nothing changes it after it is made, so it is not copied."""
        return ()

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Go back to a result of `snapshot`."""
