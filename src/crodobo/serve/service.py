"""The service without HTTP: it owns the session and the state, and answers one query at a time."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, Self

from torch import Tensor

from crodobo.config import Order
from crodobo.core.memory import Memory
from crodobo.core.observer import Observer
from crodobo.core.prediction import Reason
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data import load_public
from crodobo.errors import BadData, CrodoboError, TooClose
from crodobo.serve.points import MAX_POINTS, Drift, describe
from crodobo.serve.settings import ServeSettings
from crodobo.session.history import History
from crodobo.session.processed import Processed
from crodobo.session.session import Session
from crodobo.session.stop import Stop
from crodobo.session.warm_start import warm_learners

Action = Literal["pause", "resume", "reset", "checkpoint"]
State = Literal["loading", "warming up", "proving", "ready", "paused", "draining", "failed"]
WARM_START = "warm_start.safetensors"  # weights that have learned the source and nothing else


class Service:
    """A model that adapts to queries, one after the other.

    One thread calls `load`, `answer`, `administer` and `session.roll_back`, because they change the learners. Any
    thread may read `state` and the numbers, and call `drain` and `fail`.

    `fresh` makes new learners instead of going on from the checkpoint.
    """

    def __init__(self, settings: ServeSettings, observer: Observer | None = None, *, fresh: bool = False) -> None:
        self.settings, self._fresh = settings, fresh
        self.session = Session(
            settings,
            settings.state,
            observer=observer,
            stop=Stop(),
            progress=self._progress,
            history=History(settings.keep_states, settings.keep_every),
            durable=True,
        )
        self.points: deque[dict[str, Any]] = deque(maxlen=MAX_POINTS)  # the last queries in numbers

    def __enter__(self) -> Self:
        self.session.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def state(self) -> State:
        """What the service is doing, derived from the session."""
        session = self.session
        if session.failure:
            return "failed"
        if session.stop.requested:
            return "draining"
        if session.phase == "loading":
            return "warming up" if session.loading.is_warming_up else "loading"
        if session.phase == "ready":
            return "ready" if session.adapting else "paused"
        return "proving"

    @property
    def answering(self) -> bool:
        """Whether queries are answered. A paused service answers without learning."""
        return self.state in ("ready", "paused")

    @property
    def failure(self) -> str | None:
        """Why the service has failed, if it has."""
        return str(self.session.failure) if self.session.failure else None

    @property
    def memory(self) -> Memory:
        return self.session.memory

    @property
    def source(self) -> Source:
        return self.session.method.source

    @property
    def totals(self) -> dict[str, int]:
        """Counts since the start."""
        counts = self.session.counts
        return {
            "queries": counts.queries,
            "samples": counts.samples,
            "burned_bytes": counts.wiped,
            "restores": len(counts.restored),
            "rollbacks": self.session.history.rollbacks,
            "skipped": counts.skipped,
            "predicted_only": counts.predicted_only.total(),
        }

    def load(self) -> None:
        """Restore the learners or let new ones learn the source, then prove that burning works."""
        settings, session = self.settings, self.session
        chosen = settings.benchmark, settings.image_size, settings.data
        public = load_public(*chosen, cache_size=settings.cache_size, observer=session.loading)
        check_class_names(public.source.classes)
        warm_start = settings.state / WARM_START
        session.load(public, fresh=self._fresh, warm_start=warm_start)
        learners, _ = warm_learners(public, settings.options, session.loading, warm_start, complete=False)
        self._drift = Drift(learners)
        if session.restored and session.restored["paused"]:
            session.adapting = False
            session.observer.note("The service was paused, and still is.")
        session.start()

    def answer(
        self,
        images: Tensor,
        adapt: bool | Tensor = True,
        order: Order | None = None,
        reason: Reason = "not asked to adapt",
        owners: Tensor | None = None,
        early: Callable[[Processed], None] | None = None,
        free: Callable[[], bool] = lambda: True,
    ) -> Processed:
        """Adapt to images, predict them and burn them. The images belong to the query from here on.

        The options are those of `Session.take`.
        """
        processed = self.session.take(
            Query(images, self.memory),
            adapt=adapt,
            reason=reason,
            order=order,
            owners=owners,
            early=early,
            idle_steps=self.settings.idle_steps,
            free=free,
        )
        drift = self._drift.of(self.session.method.learners)
        self.points.append(describe(processed, drift=drift, rollback=self.session.history.last_rollback))
        return processed

    def administer(self, action: Action) -> None:
        """Pause or resume learning, also after a restart; reset the learners; or write a checkpoint."""
        session = self.session
        if action == "reset":
            session.reset()
            return
        if action == "checkpoint":
            if missing := session.spacing.missing:
                queries = "1 more query is" if missing == 1 else f"{missing} more queries are"
                problem = "Too little was learned since the last checkpoint: their difference would reveal the queries."
                raise TooClose(problem, f"A checkpoint is written when {queries} learned.")
            session.checkpoint()
            return
        session.adapting = action == "resume"
        session.log.write("resumed" if session.adapting else "paused", query=session.ledger.last_query)
        session.store_progress()

    def drain(self) -> None:
        """Stop loading, or answer only what was accepted before."""
        self.session.stop.request()

    def fail(self, error: CrodoboError) -> None:
        """Stop answering because of an error."""
        self.session.fail(error)

    def close(self) -> None:
        """Write the ledger's closing entry, after a checkpoint if enough was learned since the last one.

        An error becomes the service's `failure`.
        """
        session = self.session
        with suppress(CrodoboError):  # a failed checkpoint is the session's failure already
            if session.phase == "ready":  # else the checkpoint of an earlier process stays as it is
                session.checkpoint()
        try:
            session.close("failed" if session.failure else "stopped")
        except CrodoboError as error:
            session.fail(error)

    def _progress(self) -> dict[str, bool]:
        return {"paused": not self.session.adapting}


def check_class_names(names: Sequence[str]) -> None:
    """Refuse class names that cannot be sent as text."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadData(f"The class name {name!r} is not valid text.", "Rename its folder.") from None
