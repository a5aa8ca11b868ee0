"""The method interface: adapt on a query, predict it, keep nothing of it."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.config import MethodSettings, Order
from crodobo.core import pixels
from crodobo.core.pixels import Images
from crodobo.core.prediction import Adaptation, Prediction
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.engine import Sequence, make_engine
from crodobo.errors import BadQuery, BadSettings
from crodobo.guard.guard import Guard
from crodobo.nn.learner import Learner, average, make_learners, warm_up
from crodobo.views.augment import Augment

Protocol = Literal["online", "offline"]
VIEWS = 1_000_003  # sets the generator of the query's views apart from every learner's
RAMP = 100  # queries over which schedules run where the stream's length is not known


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
    protocols: ClassVar[tuple[Protocol, ...]] = ("online",)  # those that it can be run under and is reported for
    keeps_target: ClassVar[bool] = False  # refused where burning is on
    learns: ClassVar[bool] = True  # whether queries change the weights
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    @torch.inference_mode(False)
    @torch.enable_grad()
    def __init__(
        self,
        source: Source,
        *,
        learners: int | list[Learner] | tuple[Learner, ...] | None = None,
        augment: Augment | None = None,
        **settings: Any,
    ) -> None:
        ready = list(learners) if isinstance(learners, list | tuple) else None
        if learners is not None:
            settings["learners"] = learners if ready is None else len(ready)
        self.settings = self.Settings.of(**settings)
        check_burning(type(self), self.settings)
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
            warm_up(self.learners, self.engine, source, self.augment)
        self.steps = 0
        self.largest = 0  # samples of the largest query so far
        self._expected: int | None = None
        Sequence(self.engine.threads).map(self.prepare, self.learners)
        self.guard = Guard(self.learners, source) if self.settings.guard and self.learns else None

    def prepare(self, learner: Learner) -> None:  # noqa: B027
        """Get a warm learner ready for the first query: attach what it needs, choose what it learns."""

    def expect(self, steps: int) -> None:
        """Say how many queries will come, where that is known, so that schedules fit the stream."""
        self._expected = steps

    @property
    def progress(self) -> float:
        """How far schedules have come, 0 to 1: over the stream where its length is known, else over a fixed ramp."""
        return min(1.0, self.steps / (self._expected or RAMP))

    @abstractmethod
    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        """Update the learners on a query. `images` are its pixels as floats in 0..1.

        Tensors derived from the images go through `query.own`, so that they are erased with the query.
        """

    def survey(self, images: Images) -> None:  # noqa: B027
        """Offline: look over the whole target at the start of an epoch."""

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        """Offline: learn a batch of the target once more; `indices` say which samples they are."""
        return self.adapt(query, images)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def step(self, query: Query, order: Order | None = None) -> Prediction:
        """Adapt on a query and predict it, in this order, or in that which the settings name.

        A query that cannot be taken raises `BadQuery` before anything has changed.
        """
        query.check(self.source.shape)
        images = query.pixels()
        largest = max(self.largest, len(images))
        for learner in self.learners:
            # Adam would take a step of full length on a handful of samples, however noisy their gradient.
            learner.share = len(images) / largest
        watched = {name: value.clone() for name, value in self.guard.state().items()} if self.guard else {}
        try:
            order = order or self.settings.order
            prediction = self._guarded(query, images, order) if self.guard else self._taken_in(query, images, order)
        except BaseException:
            for learner in self.learners:
                learner.forget()
            if self.guard:
                self.guard.load_state(watched)
            raise
        self.steps, self.largest = self.steps + 1, largest
        return prediction

    def _taken_in(self, query: Query, images: Tensor, order: Order) -> Prediction:
        if order == "adapt-then-predict":
            adaptation = self.adapt(query, images)
            return replace(average(self.learners, self.engine, images), adaptation=adaptation)
        prediction = average(self.learners, self.engine, images)
        return replace(prediction, adaptation=self.adapt(query, images))

    def _guarded(self, query: Query, images: Tensor, order: Order) -> Prediction:
        assert self.guard
        found = self.guard.before(images, self.engine)
        if found.held:
            prediction = replace(average(self.learners, self.engine, images, norm="running"), adaptation=found)
        else:
            prediction = self._taken_in(query, images, order)
            if found.restored:
                prediction = replace(prediction, adaptation=replace(prediction.adaptation, restored=found.restored))
        return self.guard.after(images, prediction, self.engine)

    def predict(self, images: Tensor | np.ndarray | Query) -> Prediction:
        """Predict images, or an open query, without adapting to them."""
        if isinstance(images, Query):
            images.check(self.source.shape)
            return average(self.learners, self.engine, images.pixels())
        batch = pixels.as_tensor(images)
        if wrong := pixels.misfit(batch, self.source.shape):
            raise BadQuery(f"the batch {wrong}")
        return average(self.learners, self.engine, pixels.to_unit(batch))

    def state(self) -> dict[str, Tensor]:
        """All that is needed to go on from here, as tensors by name. Holds no target sample, unless `keeps_target`."""
        state = {"generator": self.generator.get_state()}
        state |= {"steps": torch.tensor(self.steps), "largest": torch.tensor(self.largest)}
        for number, learner in enumerate(self.learners):
            state |= {f"learners.{number}.{name}": value for name, value in learner.state().items()}
        if self.guard:
            state |= {f"guard.{name}": value for name, value in self.guard.state().items()}
        return state

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self.generator.set_state(state["generator"])
        self.steps, self.largest = int(state["steps"]), int(state["largest"])
        for number, learner in enumerate(self.learners):
            prefix = f"learners.{number}."
            learner.load_state(
                {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
            )
        if self.guard:
            self.guard.load_state({name: state[f"guard.{name}"] for name in self.guard.state()})

    def snapshot(self) -> tuple[Any, ...]:
        """Everything that `restore` needs to undo later steps, including the guard's copies of good weights."""
        copies = (self.guard.good, self.guard.next, self.guard.sound) if self.guard else None
        return {name: value.clone() for name, value in self.state().items()}, copies

    def restore(self, snapshot: tuple[Any, ...]) -> None:
        """Go back to a snapshot."""
        state, copies = snapshot
        self.load_state(state)
        if self.guard:
            self.guard.good, self.guard.next, self.guard.sound = copies


def check_burning(method: type[Method], settings: MethodSettings) -> None:
    """Refuse a method that keeps target data where burning is on."""
    if method.keeps_target and settings.burn != "off":
        raise BadSettings(
            f"{method.name} keeps target data, which burning after reading forbids; choose a method that keeps "
            "nothing, or turn burning off (--burn off) where the target may be stored"
        )


def check_runs_online(method: type[Method], settings: MethodSettings) -> None:
    """Refuse what cannot meet a stream, before anything is loaded."""
    if "online" not in method.protocols:
        raise BadSettings(
            f"{method.name} goes over the whole target again and again, so it has no online form; "
            "crodobo compare --offline runs it"
        )
    check_burning(method, settings)
