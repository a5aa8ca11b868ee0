"""Method: adapt to a query, predict it, keep nothing of it."""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.config import MethodSettings, Order
from crodobo.core import pixels
from crodobo.core.pixels import Images
from crodobo.core.prediction import Adaptation, Prediction
from crodobo.core.query import Query
from crodobo.core.source import Source, SourceBatch
from crodobo.engine import Sequence, make_engine
from crodobo.errors import BadQuery
from crodobo.guard.guard import Guard
from crodobo.guard.protection import Protection
from crodobo.methods import stepping
from crodobo.methods.checks import check_burning
from crodobo.methods.stepping import Idle, Wanted, predict_apart
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners, warm_up
from crodobo.storage.tensors import with_prefix
from crodobo.views.augment import Augment
from crodobo.views.chosen_views import ChosenViews
from crodobo.views.prediction import prediction_views

Protocol = Literal["online", "offline"]
VIEWS = 1_000_003  # keeps the seed of the query's views apart from every learner's
REFERENCE = "guard.reference."  # in the names of tensors that no step changes
RAMP = 100  # queries that schedules take if the length of the stream is unknown


class Snapshot(NamedTuple):
    """Everything that a step can change, copied in memory."""

    state: dict[str, Tensor]
    guard: tuple[Any, ...] | None  # what `Protection.state` leaves out; None if that is not to be restored


class Method(ABC):
    """Adapts learners to a stream, one query at a time.

    A new method is a subclass with a `name` and an `adapt`. This class checks the query, orders adapting and
    predicting, averages the learners and gives the state for checkpoints.

    Parameters
    ----------
    source
        The labelled public data.
    learners
        How many learners to make and warm up; or learners that are ready to use.
    augment
        How weak and strong views are made.
    settings
        The fields of the method's `Settings`.
    """

    name: ClassVar[str]
    protocols: ClassVar[tuple[Protocol, ...]] = ("online",)  # the protocols that the method supports
    keeps_target: ClassVar[bool] = False  # if true, the method is refused where burning is on
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
        self.source_views = ChosenViews(self.settings.source_views, source)
        self.generator = Generator().manual_seed(self.settings.seed + VIEWS)
        count, parallel, threads = self.settings.learners, self.settings.parallel, self.settings.threads
        self.engine = make_engine(count, parallel=parallel, threads=threads)
        if ready is None:
            ready = make_learners(source, count, self.settings.seed, self.settings)
            warm_up(ready, self.engine, source, self.augment)
        self.learners = ready
        for learner in self.learners:
            learner.views = partial(prediction_views, count=self.settings.predict_views, augment=self.augment)
        self.steps = 0
        self.largest = 0  # samples of the largest query so far
        self._expected: int | None = None
        self._undo: Snapshot | None = None  # from before the last step
        Sequence(self.engine.threads).map(self.prepare, self.learners)
        self._begin()

    def _begin(self) -> None:
        """Take the learners as they are for those before the stream."""
        with self.engine.torch_threads():
            protected = self.settings.guard and self.learns
            self.guard = self.make_guard() if protected else Protection(self.learners)

    def make_guard(self) -> Protection:
        """What keeps the stream from harming the learners."""
        return Guard(self.learners, self.source)

    def prepare(self, learner: Learner) -> None:  # noqa: B027
        """Prepare a warm learner for the first query: attach parts, choose the weights to learn."""

    def expect(self, steps: int) -> None:
        """Tell the method how many queries will come, so that schedules fit the stream."""
        self._expected = steps

    @property
    def progress(self) -> float:
        """The position of schedules, 0 to 1: over the expected queries, or else over the first 100."""
        return min(1.0, self.steps / (self._expected or RAMP))

    @property
    def in_words(self) -> str:
        """The settings that cost time or accuracy, in one line for people."""
        settings, views = self.settings, self.source_views
        if settings.budget is None:
            steps = f"{settings.steps} step{'s' if settings.steps > 1 else ''} per query"
        else:
            steps = f"as many steps per query as fit into {settings.budget:g} s"
        shown = f"{views.warm_up} if the target has colours" if views.open and not views.decided else f"{views.now}"
        scale = self.learners[0].backbone_lr_scale
        rate = f"learning rate {getattr(settings, 'adapt_lr', settings.lr):g}" + (
            f" (backbone × {scale:g})" if scale != 1 else ""
        )
        learners = f"{settings.learners} learner{'s' if settings.learners > 1 else ''}"
        parts = [learners, steps, f"source views: {shown}", rate] if self.learns else [learners]
        return f"{self.name}: {', '.join(parts)}."

    def draw_source(
        self, learner: Learner, size: int, query: Query | None = None, images: Tensor | None = None
    ) -> SourceBatch:
        """A bootstrap of the source for a learner, in its source views.

        Some views use the `images` of the query beside which the source is learned. The query owns those.
        """
        batch = self.source.bootstrap(size, learner.generator)
        if query is None or not self.source_views.now.from_query:
            return batch._replace(images=self.show_source(batch.images, learner.generator))
        return batch._replace(images=query.own(self.show_source(batch.images, learner.generator, images)))

    def show_source(self, images: Tensor, generator: Generator, query: Tensor | None = None) -> Tensor:
        """The views of source images in which they are learned. `query` holds images of a query, if there is one."""
        weak = self.augment.weak(images, generator)
        return self.source_views.now.make(weak, self.augment, generator, query)

    @abstractmethod
    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        """Update the learners on a query. `images` are its pixels as floats in 0..1.

        Pass tensors derived from the images through `query.own`, so that they are erased with the query.
        """

    def survey(self, images: Images) -> None:  # noqa: B027
        """Offline: look at the whole target at the start of an epoch."""

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        """Offline: learn a batch of the target. `indices` are the numbers of its samples."""
        return self.adapt(query, images)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def step(
        self,
        query: Query,
        order: Order | None = None,
        rows: Tensor | None = None,
        idle: Idle | None = None,
        owners: Tensor | None = None,
    ) -> Prediction:
        """Adapt to a query and predict it, in this order or in that of the settings.

        A step that raises leaves no trace. An unusable query raises `BadQuery`.

        Parameters
        ----------
        query
            The query, opened.
        order
            Whether to adapt or to predict first, instead of what the settings say.
        rows
            Which samples may be learned, as booleans; all of them if not given. All samples are predicted.
        idle
            Further steps after the prediction. They are not taken if nothing is learned from the query.
        owners
            The number of each sample's owner. If there are several, the samples of each are predicted by themselves,
            and before the query is learned: nobody's answer depends on another's samples in the query.
        """
        query.check(self.source.shape)
        if rows is not None and not rows.any():
            return replace(self.predict(query, owners), adaptation=Adaptation(predicted_only="not asked to adapt"))
        images = query.pixels()
        largest = max(self.largest, len(images))
        learned = len(images) if rows is None else int(rows.sum())
        self.guard.scale(len(images), learned, largest, self.settings.warmup_batch)
        self._undo = self.snapshot(self._undo)
        try:
            with self.engine.torch_threads():
                wanted = Wanted(order or self.settings.order, rows, idle, owners)
                prediction = stepping.take(self, query, images, wanted)
        except BaseException:
            self.restore(self._undo)
            raise
        self.steps, self.largest = self.steps + 1, largest
        return prediction

    def choose_views(self, images: Tensor) -> None:
        """Let the first images of the target decide in which views the source is learned."""
        if not self.source_views.look(images):
            return
        for learner in self.learners:
            if not self.source_views.now.parts:
                learner.begin_plain()
                self.prepare(learner)
            learner.plain_start = {}
        self._begin()

    def goes_on(self) -> bool:
        """Whether to take another step on the same query, if the settings allow it."""
        return self.learns and not self.guard.one_step

    def predict(self, images: Tensor | np.ndarray | Query, owners: Tensor | None = None) -> Prediction:
        """Predict images, or an open query, without adapting to them.

        `owners` are the numbers of the owners of a query's samples, as in `step`.
        """
        if isinstance(images, Query):
            images.check(self.source.shape)
            apart = predict_apart(self, images, owners)
            return apart or self.guard.predict(images.pixels(), self.engine)
        batch = pixels.as_tensor(images)
        if wrong := pixels.misfit(batch, self.source.shape):
            raise BadQuery(f"The batch {wrong}.")
        return self.guard.predict(pixels.to_unit(batch), self.engine)

    def state(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors by name. It has no target sample, unless `keeps_target`."""
        state = {"generator": self.generator.get_state(), "target_colours": self.source_views.target}
        state |= {"steps": torch.tensor(self.steps), "largest": torch.tensor(self.largest)}
        for number, learner in enumerate(self.learners):
            state |= {f"learners.{number}.{name}": value for name, value in learner.state().items()}
        return state | {f"guard.{name}": value for name, value in self.guard.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`. The guard takes the loaded weights for good ones."""
        self.generator.set_state(state["generator"])
        self.source_views.target.copy_(state["target_colours"])
        self.steps, self.largest = int(state["steps"]), int(state["largest"])
        self._load_learners(state)
        self.guard.load_state(with_prefix("guard.", state))

    def _load_learners(self, state: dict[str, Tensor]) -> None:
        for number, learner in enumerate(self.learners):
            learner.load_state(with_prefix(f"learners.{number}.", state))

    @torch.no_grad()
    def snapshot(self, reuse: Snapshot | None = None) -> Snapshot:
        """A copy of everything that a step can change. `restore` returns to it.

        `reuse` is an old snapshot to overwrite. That saves allocating memory, which takes longer than the copying.
        """
        old = reuse.state if reuse else {}
        now = {name: value for name, value in self.state().items() if not name.startswith(REFERENCE)}
        state = {name: old[name].copy_(value) if name in old else value.clone() for name, value in now.items()}
        return Snapshot(state, self.guard.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Undo everything since `snapshot` was taken, as if it had not happened."""
        for learner in self.learners:
            learner.forget()
        if self.source_views.decided and "learners.0.plain_start.generator" in snapshot.state:
            self.source_views.target.copy_(snapshot.state["target_colours"])
            self._load_learners(snapshot.state)
            self._begin()  # with a reference that has learned the source in the same views
        unchanged = {name: value for name, value in self.state().items() if name.startswith(REFERENCE)}
        self.load_state(unchanged | snapshot.state)
        if snapshot.guard is not None:
            self.guard.restore(snapshot.guard)
