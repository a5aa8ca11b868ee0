"""The method interface: adapt on a query, predict it, keep nothing of it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo import pixels
from crodobo.augment import Augment
from crodobo.config import MethodSettings
from crodobo.engine import make_engine
from crodobo.errors import BadQuery
from crodobo.learner import Learner, average, make_learners
from crodobo.prediction import Adaptation, Prediction
from crodobo.query import Query
from crodobo.source import Source

VIEWS = 1_000_003  # sets the generator of the query's views apart from every learner's


class Method(ABC):
    """Adapts learners to a stream, one query at a time.

    A new method is a subclass with a `name` and an `adapt`. Checking the query, the order of adapting and
    predicting, the average over the learners and the checkpoint come from here.

    Parameters
    ----------
    source
        The labelled public data.
    learners
        How many learners to make and warm up; or learners, which are then taken as they are.
    augment
        How weak and strong views are made.
    settings
        The fields of the method's `Settings`.
    """

    name: ClassVar[str]
    keeps_target: ClassVar[bool] = False
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(
        self,
        source: Source,
        *,
        learners: int | Sequence[Learner] | None = None,
        augment: Augment | None = None,
        **settings: Any,
    ) -> None:
        ready = list(learners) if isinstance(learners, list | tuple) else None
        if learners is not None:
            settings["learners"] = learners if ready is None else len(ready)
        self.settings = self.Settings.of(**settings)
        self.source = source
        self.augment = augment or Augment()
        self.generator = Generator().manual_seed(self.settings.seed + VIEWS)
        self.engine = make_engine(
            self.settings.learners, parallel=self.settings.parallel, threads=self.settings.threads
        )
        if ready is not None:
            self.learners = ready
        else:
            self.learners = make_learners(source, self.settings.learners, self.settings.seed, self.settings)
            self.warm_up()

    def warm_up(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Let the learners learn the source; `after_step` is called from their threads after each step of each."""
        self.engine.map(lambda learner: learner.warm_up(self.source, self.augment, after_step), self.learners)

    @abstractmethod
    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        """Update the learners on a query. `images` are its pixels as floats in 0..1.

        Tensors derived from the images go through `query.own`, so that they are erased with the query.
        """

    @torch.inference_mode(False)
    @torch.enable_grad()
    def step(self, query: Query) -> Prediction:
        """Adapt on a query and predict it, in the order that the settings name.

        A query that cannot be taken raises `BadQuery` before anything has changed.
        """
        query.check(self.source.shape)
        images = query.pixels()
        try:
            if self.settings.order == "adapt-then-predict":
                adaptation = self.adapt(query, images)
                return replace(average(self.learners, self.engine, images), adaptation=adaptation)
            prediction = average(self.learners, self.engine, images)
            return replace(prediction, adaptation=self.adapt(query, images))
        except BaseException:
            for learner in self.learners:
                learner.forget()
            raise

    def predict(self, images: Tensor | np.ndarray) -> Prediction:
        """Predict images without adapting to them."""
        batch = pixels.as_tensor(images)
        if wrong := pixels.misfit(batch, self.source.shape):
            raise BadQuery(f"the batch {wrong}")
        return average(self.learners, self.engine, pixels.to_unit(batch))

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on from here, as tensors by name. Holds no target sample."""
        state = {"generator": self.generator.get_state()}
        for number, learner in enumerate(self.learners):
            state |= {f"learners.{number}.{name}": value for name, value in learner.state().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self.generator.set_state(state["generator"])
        for number, learner in enumerate(self.learners):
            prefix = f"learners.{number}."
            learner.load_state(
                {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            )
