"""The service without its wires: learners, ledger and checkpoint, one query at a time."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from safetensors import SafetensorError
from torch import Tensor

from crodobo.burn.levels import memory_for
from crodobo.burn.proof import places, prove_at_start, try_out
from crodobo.burn.scan import Scan
from crodobo.config import Order
from crodobo.core.memory import Memory
from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction
from crodobo.core.query import Query
from crodobo.data import Public, load_public
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint, BadData, CrodoboError, Interrupted, Residue
from crodobo.ledger.entry import now
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import Ledger
from crodobo.ledger.signing import SigningKey
from crodobo.methods import Method, get_method
from crodobo.nn.learner import make_learners, warm_up
from crodobo.serve.counts import Numbers, Point
from crodobo.serve.drift import Drift
from crodobo.serve.settings import ServeSettings
from crodobo.session.checkpoint import delete_checkpoint, load_checkpoint, save_checkpoint
from crodobo.session.events import Log
from crodobo.session.saver import Saver

State = Literal["loading", "warming up", "proving", "ready", "paused", "draining", "failed"]
WARM = "warm"  # the folder of learners that have learned the source and nothing else


@dataclass(frozen=True)
class Answer:
    """What became of a query: its prediction, its receipt, and how long it took.

    `saved` is done when what was learned is on disk; None where nothing was learned, or that is left for later. It
    fails where the disk does, and so does the service.
    """

    prediction: Prediction
    receipt: str
    query: int
    seconds: float
    saved: "Future[None] | None" = None


class Learned(NamedTuple):
    """What the learners know after so many queries, and whether they are to learn more."""

    tensors: dict[str, Tensor]
    met: int
    paused: bool = False


@dataclass
class Service:
    """A model that adapts to queries, one after the other.

    All that touches the learners happens in one thread, the caller's: `load`, `answer`, `pause`, `reset`, `checkpoint`.
    Others look at `state` and `numbers`.
    """

    settings: ServeSettings
    key: SigningKey | None = None
    log: Log = field(default_factory=Log)
    reporter: Observer = field(default_factory=Observer)
    fresh: bool = False  # new learners, instead of those of the checkpoint

    def __post_init__(self) -> None:
        self.state: State = "loading"
        self.failure: str | None = None
        self.adapting = True
        self.memory: Memory = memory_for(self.settings.options.burn)
        self.numbers = Numbers()
        self.proof: Scan | None = None
        self.proved_at: str | None = None
        self.met = 0  # queries that the learners have learned from, in earlier processes too
        self.loaded = self._begun = False
        self.stopping = threading.Event()
        self.ledger = Ledger(self.settings.state / LEDGER, self.key)
        self._saver = Saver(self._save)

    @property
    def answering(self) -> bool:
        """Whether queries are answered; a service that is paused answers without learning."""
        return self.state in ("ready", "paused")

    # Getting ready

    def load(self) -> None:
        """Learners from the checkpoint, or new ones that learn the source; then the proof that nothing is left."""
        settings, options = self.settings, self.settings.options
        public = load_public(
            settings.benchmark,
            settings.image_size,
            settings.data,
            cache_size=settings.cache_size,
            observer=self.reporter,
        )
        self.source, self._identity = public.source, settings.identity | {"stamp": public.stamp}
        check_names(self.source.classes)
        if self.fresh:
            for folder in (settings.state, settings.state / WARM):
                delete_checkpoint(folder)
        stored, warm = self._stored(settings.state), self._stored(settings.state / WARM)
        self._make_method(public, warm.tensors if warm else None)
        if not warm:
            self._write(settings.state / WARM, Learned(self.method.state(), 0))
        self._drift = Drift(self.method.learners)
        self.loaded = True
        if stored:
            self._take(stored.tensors)
            self.met, self.adapting = stored.met, not stored.paused
            paused = "; they are paused, as they were" if stored.paused else ""
            self.reporter.note(f"going on with learners that have met {self.met} queries{paused}")
        else:
            self.checkpoint()
        self.state = "proving"
        self.proof = prove_at_start(self.method, self.memory, settings.query_size, self.reporter.note)
        self.proved_at = now() if self.proof else None
        scan = self.proof.as_numbers() if self.proof else None
        # Numbers go on where the receipts are, not where the checkpoint is: a kill gives none of them to two queries.
        number = max(self.ledger.last_query, self.met)
        self.ledger.begin(settings.model_dump(mode="json"), after=number, scan=scan)
        self._begun = True
        self.log.write("started", burn=options.burn, query=number)
        if self.state == "proving":
            self.state = "ready" if self.adapting else "paused"

    def _make_method(self, public: Public, warm: dict[str, Tensor] | None) -> None:
        """The method with learners that have learned the source, now or before."""
        options, (source, augment, _) = self.settings.options, public
        learners = make_learners(source, options.learners, options.seed, options)
        if not warm:
            self.state = "warming up"
            engine = make_engine(options.learners, parallel=options.parallel, threads=options.threads)
            self.reporter.warming_up(options.warmup * options.learners)
            warm_up(learners, engine, source, augment, self._after_step)
        kind = get_method(self.settings.method)
        self.method: Method = kind(source, augment=augment, **dict(options) | {"learners": learners})
        if warm:
            self._take(warm)

    def _reading(self, done: int, total: int) -> None:
        if self.stopping.is_set():
            raise Interrupted("stopped while the source was decoded")
        self.reporter.reading(done, total)

    def _after_step(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("stopped during the warm-up")
        self.reporter.warmed_up_step()

    def _stored(self, folder: Path) -> Learned | None:
        try:
            found = load_checkpoint(folder, self._identity)
        except BadCheckpoint as error:
            sentence = str(error).split("; ")[0]
            way = "give the same settings, --fresh, or another --state"
            if folder.name == WARM and "damaged" in sentence:
                way = "delete it, and it is made again"
            raise BadCheckpoint(f"{sentence}; {way}") from error
        return Learned(found[0], int(found[1]["queries"]), bool(found[1].get("paused"))) if found else None

    def _take(self, tensors: dict[str, Tensor]) -> None:
        try:
            self.method.load_state(tensors)
        except (KeyError, RuntimeError) as error:
            raise BadCheckpoint(
                f"the checkpoint in {self.settings.state} is of another version of crodobo; --fresh starts anew"
            ) from error

    # Working

    def answer(self, images: Tensor, adapt: bool = True, order: Order | None = None) -> Answer:
        """Adapt to images, predict them, burn them. The images belong to the query from here on."""
        started = time.perf_counter()
        adapt = adapt and self.adapting
        query = Query(images, self.memory)
        with query:
            prediction = self.method.step(query, order) if adapt else self.method.predict(query)
        self.met += adapt
        number = self.ledger.last_query + 1
        scan = self._prove_again() if self._is_due(self.settings.prove_every, number) else None
        receipt = self._receipt(len(prediction.probabilities), query.wiped, scan)
        due = adapt and self._is_due(self.settings.checkpoint_every, self.met)
        saved = self._saver.save(self._learned()) if due else None
        seconds = time.perf_counter() - started
        self._note(prediction, number, receipt, query.wiped, seconds, adapt)
        if scan and scan.finds:
            self.fail(f"of a test query that was burned, {places(scan)} are still in memory")
            raise Residue(self.failure)
        return Answer(prediction, receipt, number, seconds, saved)

    def _is_due(self, every: int | None, number: int) -> bool:
        return every is not None and number % every == 0

    def _prove_again(self) -> Scan:
        self.proof, self.proved_at = try_out(self.method, self.memory, self.settings.query_size), now()
        return self.proof

    def _receipt(self, samples: int, wiped: int, scan: Scan | None) -> str:
        """Of a query that was burned; a service that can write none answers no more."""
        try:
            return self.ledger.burned(samples=samples, wiped=wiped, scan=scan.as_numbers() if scan else None)
        except CrodoboError as error:
            self.fail(str(error))
            raise

    def fail(self, sentence: str) -> None:
        """Answer no more, and say why."""
        self.state, self.failure = "failed", sentence

    def _note(
        self, prediction: Prediction, number: int, receipt: str, wiped: int, seconds: float, adapted: bool
    ) -> None:
        """Keep numbers of a query for whoever watches."""
        drift = self._drift.of(self.method.learners)
        point = Point.of(prediction, query=number, seconds=seconds, drift=drift, adapted=adapted)
        self.numbers.add(point, receipt, wiped)
        if prediction.adaptation.restored:
            self.reporter.note(f"query {number}: {prediction.adaptation.restored}")
            self.log.write("restored", query=number)
        self.log.write("query", query=number, seconds=point.seconds, wiped=wiped, **prediction.numbers)

    # Operating

    def pause(self, paused: bool = True) -> None:
        """Answer without learning from here on, or learn again; also in the next process."""
        self.adapting = not paused
        if self.answering:  # and has neither failed nor begun to drain while this waited for its turn
            self.state = "paused" if paused else "ready"
        self.log.write("paused" if paused else "resumed", query=self.ledger.last_query)
        self.checkpoint()

    def checkpoint(self) -> None:
        """Put all that is needed to go on on disk."""
        self._saver.save(self._learned()).result()
        self.log.write("checkpoint", query=self.ledger.last_query)

    def reset(self) -> None:
        """Let the learners be as they were when they had learned the source and nothing else."""
        warm = self._stored(self.settings.state / WARM)
        if not warm:
            raise CrodoboError(f"{self.settings.state / WARM} is gone; start the service anew with --fresh")
        self._take(warm.tensors)
        self.met = 0
        self.checkpoint()
        self.log.write("reset", query=self.ledger.last_query)

    def close(self) -> None:
        """Write the checkpoint and the ledger's closing line; what goes wrong becomes the service's `failure`."""
        try:
            if self._begun:  # else the checkpoint is that of an earlier process, and stays
                self.checkpoint()
        except CrodoboError as error:
            self.fail(self.failure or str(error))
        self._saver.close()
        try:
            self.ledger.close("failed" if self.failure else "stopped")
        except CrodoboError as error:
            self.fail(self.failure or str(error))
        self.log.write("ended", end="failed" if self.failure else "stopped", query=self.ledger.last_query)

    def _learned(self) -> Learned:
        """What the learners know at this moment."""
        tensors = {name: value.clone() for name, value in self.method.state().items()}
        return Learned(tensors, self.met, not self.adapting)

    def _save(self, learned: Learned) -> None:
        """In the saver's thread; a service that cannot keep what it learns answers no more."""
        try:
            self._write(self.settings.state, learned)
        except (OSError, MemoryError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            self.fail(
                f"what was learned cannot be written to {self.settings.state} ({reason}), and the service does not go "
                "on without; put that right, then the same command does"
            )
            raise CrodoboError(self.failure) from None

    def _write(self, folder: Path, learned: Learned) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        progress = {"queries": learned.met, "paused": learned.paused}
        save_checkpoint(folder, learned.tensors, self._identity, progress)


def check_names(classes: Sequence[str]) -> None:
    """Refuse names of classes that cannot be sent to anybody."""
    for name in classes:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise BadData(f"the class {name!r} has a name that is no text; rename its folder") from None
