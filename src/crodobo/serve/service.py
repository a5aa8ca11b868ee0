"""The service without its wires: learners, ledger and checkpoint, one query at a time."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from crodobo.burn.ledger import NAME as LEDGER
from crodobo.burn.ledger import Ledger
from crodobo.burn.levels import memory_for
from crodobo.burn.log import Log
from crodobo.burn.memory import Memory
from crodobo.burn.scan import Scan
from crodobo.burn.signing import SigningKey
from crodobo.checkpoint import load_checkpoint, save_checkpoint
from crodobo.config import Order
from crodobo.data import Watcher, load_public
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted, Residue
from crodobo.learner import make_learners, warm_up
from crodobo.methods import Method, get_method
from crodobo.prediction import Prediction
from crodobo.proof import places, prove_at_start, try_out
from crodobo.query import Query
from crodobo.run import Reporter
from crodobo.serve.settings import ServeSettings

State = Literal["loading", "warming up", "proving", "ready", "paused", "draining", "failed"]
WARM = "warm"  # the folder of learners that have learned the source and nothing else
KEPT = 240  # queries that the page shows


@dataclass(frozen=True)
class Answer:
    """What became of a query: its prediction, its receipt, and how long it took."""

    prediction: Prediction
    receipt: str
    query: int
    seconds: float


@dataclass(frozen=True)
class Point:
    """A query in numbers, as the page shows it; nothing of any sample."""

    query: int
    time: str
    samples: int
    seconds: float
    confidence: float
    entropy: float
    agreement: float | None
    kept: float | None
    drift: float
    classes: tuple[float, ...]
    adapted: bool
    held: bool
    restored: bool
    skipped: int


@dataclass
class Totals:
    """What has been done since the start."""

    queries: int = 0
    samples: int = 0
    burned_bytes: int = 0
    restores: int = 0
    skipped: int = 0
    held: int = 0


@dataclass
class Service:
    """A model that adapts to queries, one after the other.

    All that touches the learners happens in one thread, the caller's: `answer`, `reset`, `checkpoint`. What others look
    at (`state`, `points`, `totals`) is replaced as a whole.
    """

    settings: ServeSettings
    key: SigningKey | None = None
    log: Log = field(default_factory=Log)
    reporter: Reporter = field(default_factory=Reporter)

    def __post_init__(self) -> None:
        self.state: State = "loading"
        self.failure: str | None = None
        self.adapting = True
        self.memory: Memory = memory_for(self.settings.options.burn)
        self.totals = Totals()
        self.points: deque[Point] = deque(maxlen=KEPT)
        self.receipts: deque[dict[str, Any]] = deque(maxlen=20)
        self.proof: Scan | None = None
        self.proved_at: str | None = None
        self.met = 0  # queries that the learners have met, in earlier processes too
        self.stopping = threading.Event()
        self.ledger = Ledger(self.settings.state / LEDGER, self.key)

    @property
    def answering(self) -> bool:
        """Whether queries are answered; a service that is paused answers without learning."""
        return self.state in ("ready", "paused")

    # Getting ready

    def load(self) -> None:
        """Learners from the checkpoint, or new ones that learn the source; then the proof that nothing is left."""
        settings, options = self.settings, self.settings.options
        watcher = Watcher(note=self.reporter.note, progress=self._reading)
        self.source, augment = load_public(
            settings.benchmark, settings.image_size, settings.data, cache_size=settings.cache_size, watcher=watcher
        )
        stored = self._stored(settings.state)
        warm = self._stored(settings.state / WARM)
        learners = make_learners(self.source, options.learners, options.seed, options)
        if not warm:
            self.state = "warming up"
            engine = make_engine(options.learners, parallel=options.parallel, threads=options.threads)
            self.reporter.warming_up(options.warmup * options.learners)
            warm_up(learners, engine, self.source, augment, self._after_step)
        kind = get_method(settings.method)
        self.method: Method = kind(self.source, augment=augment, **dict(options) | {"learners": learners})
        if warm:
            self._take(warm[0])
        else:
            (settings.state / WARM).mkdir(parents=True, exist_ok=True)
            save_checkpoint(settings.state / WARM, self.method.state(), settings.identity, {"queries": 0})
        self._origin = [value.clone() for learner in self.method.learners for value in learner.statistics]
        if stored:
            self._take(stored[0])
            self.met = int(stored[1]["queries"])
            self.reporter.note(f"going on with learners that have met {self.met} queries")
        else:
            self.checkpoint()
        self.state = "proving"
        self.proof = prove_at_start(self.method, self.memory, settings.query_size, self.reporter.note)
        self.proved_at = now() if self.proof else None
        scan = self.proof.as_numbers() if self.proof else None
        self.ledger.begin(settings.model_dump(mode="json"), after=self.met, scan=scan)
        self.log.write("started", burn=options.burn, query=self.met)
        if self.state == "proving":
            self.state = "ready"

    def _reading(self, done: int, total: int) -> None:
        if self.stopping.is_set():
            raise Interrupted("stopped while the source was decoded")
        self.reporter.reading(done, total)

    def _after_step(self) -> None:
        if self.stopping.is_set():
            raise Interrupted("stopped during the warm-up")
        self.reporter.warmed_up_step()

    def _stored(self, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        try:
            return load_checkpoint(folder, self.settings.identity)
        except BadCheckpoint as error:
            sentence = str(error).split("; ")[0]
            raise BadCheckpoint(f"{sentence}; give the same settings, --fresh, or another --state") from error

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
        samples = len(prediction.probabilities)
        self.met += 1
        scan = self._prove_again() if self._due(self.settings.prove_every) else None
        receipt = self.ledger.burned(samples=samples, wiped=query.wiped, scan=scan.as_numbers() if scan else None)
        seconds = time.perf_counter() - started
        self._note(prediction, query, samples, seconds, receipt, adapt)
        if scan and scan.finds:
            self.state = "failed"
            self.failure = f"of a test query that was burned, {places(scan)} are still in memory"
            raise Residue(self.failure)
        if self._due(self.settings.checkpoint_every):
            self.checkpoint()
        return Answer(prediction, receipt, self.met, seconds)

    def _due(self, every: int | None) -> bool:
        return bool(every) and self.met % (every or 1) == 0

    def _prove_again(self) -> Scan:
        self.proof, self.proved_at = try_out(self.method, self.memory, self.settings.query_size), now()
        return self.proof

    def _note(
        self, prediction: Prediction, query: Query, samples: int, seconds: float, receipt: str, adapted: bool
    ) -> None:
        """Keep numbers of a query for whoever watches."""
        probabilities, adaptation = prediction.probabilities, prediction.adaptation
        entropy = -(probabilities * probabilities.clamp_min(1e-12).log()).sum(dim=1).mean()
        mix = torch.bincount(prediction.labels, minlength=probabilities.shape[1]) / samples
        point = Point(
            query=self.met,
            time=now(),
            samples=samples,
            seconds=round(seconds, 4),
            confidence=round(float(prediction.confidence.mean()), 4),
            entropy=round(float(entropy), 4),
            agreement=prediction.agreement,
            kept=adaptation.kept,
            drift=round(self.drift(), 4),
            classes=tuple(round(value, 4) for value in mix.tolist()),
            adapted=adapted,
            held=adaptation.held,
            restored=adaptation.restored is not None,
            skipped=adaptation.skipped,
        )
        self.points.append(point)
        self.receipts.append({"id": receipt, "query": self.met, "time": point.time, "samples": samples})
        totals = self.totals
        totals.queries, totals.samples = totals.queries + 1, totals.samples + samples
        totals.burned_bytes += query.wiped
        totals.restores += point.restored
        totals.held += point.held
        totals.skipped += point.skipped
        if adaptation.restored:
            self.reporter.note(f"query {self.met}: {adaptation.restored}")
            self.log.write("restored", query=self.met)
        self.log.write(
            "query",
            query=self.met,
            samples=samples,
            seconds=point.seconds,
            agreement=point.agreement,
            kept=point.kept,
            confidence=point.confidence,
            skipped=point.skipped,
            wiped=query.wiped,
        )

    def drift(self) -> float:
        """How far the learners' statistics are from those they had when the service started, in standard deviations."""
        living = [value for learner in self.method.learners for value in learner.statistics]
        means = [
            (now - before).abs() / (spread + 1e-5).sqrt()
            for (now, before, spread) in zip(living[::3], self._origin[::3], self._origin[1::3], strict=True)
        ]
        return float(torch.cat(means).mean()) if means else 0.0

    # Operating

    def checkpoint(self) -> str | None:
        """Put all that is needed to go on on disk; what went wrong, if anything did."""
        try:
            save_checkpoint(self.settings.state, self.method.state(), self.settings.identity, {"queries": self.met})
        except OSError as error:
            self.reporter.note(f"no checkpoint could be written ({error.strerror}); the service goes on without")
            return error.strerror
        self.log.write("checkpoint", query=self.met)
        return None

    def reset(self) -> None:
        """Let the learners be as they were when they had learned the source and nothing else."""
        warm = self._stored(self.settings.state / WARM)
        if not warm:
            raise CrodoboError(f"{self.settings.state / WARM} is gone; start the service anew with --fresh")
        self._take(warm[0])
        self.checkpoint()

    def close(self, end: Literal["finished", "stopped", "failed"] = "stopped") -> None:
        """Write the checkpoint and the ledger's closing line."""
        if hasattr(self, "_origin"):
            self.checkpoint()
            self.log.write("ended", end=end, query=self.met)
        self.ledger.close(end)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
