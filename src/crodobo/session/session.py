"""The session: the one loop that every stream goes through.

    step ─► burn ─► commit ─► proof? ─► receipt ─► count ─► log ─► checkpoint?

`crodobo run`, `adapt` and `serve` differ in where their queries come from and in what they commit. A service with idle
steps answers a query before it has learned all it can from it: `early` is called between two steps.
"""

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

from torch import Tensor

from crodobo.burn.levels import memory_for
from crodobo.burn.scan import Scan
from crodobo.config import Order, SessionSettings
from crodobo.core.counts import Counts
from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction, Reason
from crodobo.core.query import Query
from crodobo.errors import BadCheckpoint, BadData, BadQuery, CrodoboError, Interrupted
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import End, Ledger
from crodobo.ledger.signing import load_signing_key
from crodobo.methods import Method, get_method
from crodobo.methods.checks import check_runs_online
from crodobo.methods.stepping import Idle
from crodobo.nn.backbones import RANDOM_WEIGHTS, check_backbone, needs_pretrained_weights
from crodobo.session.checkpoint import CLASSES, STAMP, carry_over, delete_checkpoint
from crodobo.session.checkpoint_writer import CheckpointData, CheckpointWriter
from crodobo.session.events import Log
from crodobo.session.history import History, Moment
from crodobo.session.processed import Commit, Processed
from crodobo.session.prover import Prover, residue_of
from crodobo.session.spacing import Spacing
from crodobo.session.stop import Stop, StoppableObserver, StopSignal
from crodobo.session.warm_start import PublicData, make_method, restore_method, warm_learners
from crodobo.storage.lock import locked_folder

HELD = 14  # bytes held per value of a query: the image, its floats, two views as floats, and the next query's image
Phase = Literal["loading", "proving", "ready", "closed"]


class Session:
    """One method working through one stream, in one folder.

    Entering it locks the folder and opens the ledger and the event log. `load` makes the learners ready, `start` proves
    that burning works, and `take` processes a query. Leaving it writes the ledger's closing entry.

    Parameters
    ----------
    settings
        What the session is made of. They are checked here, before anything is loaded.
    folder
        Where checkpoint and ledger are. One session at a time may use it.
    observer
        Receives progress.
    stop
        Says when to stop. By default Ctrl-C and SIGTERM do.
    counts
        Counts queries. A stream with more to count brings its own.
    progress
        Called for each checkpoint; what it returns is stored, and given back as `restored` when a session goes on.
    history
        Keeps earlier states of the learners for `roll_back`. By default none are kept.
    durable
        Write checkpoints in the background, and end the session when one cannot be written. Otherwise a checkpoint is
        written before `take` returns, and a failure is reported while the stream goes on.
    """

    def __init__(
        self,
        settings: SessionSettings,
        folder: str | Path,
        *,
        observer: Observer | None = None,
        stop: Stop | None = None,
        counts: Counts | None = None,
        progress: Callable[[], dict[str, Any]] = dict,
        history: History | None = None,
        durable: bool = False,
    ) -> None:
        self._kind = get_method(settings.method)
        check_runs_online(self._kind, settings.options)
        check_backbone(settings.options.backbone)
        self._key = load_signing_key(settings.sign_key) if settings.sign_key else None
        self.settings, self.folder = settings, Path(folder)
        self.observer, self.stop = observer or Observer(), stop or StopSignal()
        self.loading = StoppableObserver(self.observer, self.stop)
        self.memory = memory_for(settings.options.burn)
        self.counts, self.history = counts or Counts(), history or History()
        self.learned = 0  # queries that the learners have learned from, in earlier processes too
        self.adapting = True
        self.restored: dict[str, Any] | None = None  # the progress that the checkpoint had
        self.warmup_seconds = 0.0
        self.prover = Prover(settings, self.memory)
        self.spacing = Spacing(settings.checkpoint_every, private=settings.PRIVATE and self._kind.learns)
        self.failure: CrodoboError | None = None
        self._progress, self._durable = progress, durable
        self._resources = ExitStack()
        self.phase: Phase = "loading"

    @classmethod
    @contextmanager
    def open(cls, settings: SessionSettings, public: PublicData, folder: str | Path, **options: Any) -> Iterator[Self]:
        """A session that is ready for its first query.

        Examples
        --------
        >>> import tempfile, torch, crodobo
        >>> from crodobo.data import Public
        >>> source = crodobo.Source(torch.rand(8, 1, 32, 32), [0, 1] * 4)
        >>> settings = crodobo.SessionSettings(method="source-only", options=crodobo.SourceOnly.Settings(warmup=0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Session.open(settings, Public(source, crodobo.Augment(), "", "mine"), folder) as session:
        ...         processed = session.take(crodobo.Query(torch.rand(3, 1, 32, 32)))
        >>> processed.query, len(processed.prediction.labels)
        (1, 3)
        """
        with cls(settings, folder, **options) as session:
            session.load(public)
            session.start()
            yield session

    # Opening

    def __enter__(self) -> Self:
        with ExitStack() as resources:
            lock = locked_folder(self.folder, private=self.settings.PRIVATE, settings=self.settings.FOLDER)
            resources.enter_context(lock)
            self.ledger = resources.enter_context(Ledger(self.folder / LEDGER, self._key))
            self.log = resources.enter_context(Log(self.settings.log))
            failed = self.fail if self._durable else None
            self._checkpoints = CheckpointWriter(self.folder, self.log, self.observer.note, failed)
            resources.enter_context(self.stop)
            self._resources = resources.pop_all()
        return self

    def load(
        self,
        public: PublicData,
        *,
        fresh: bool = False,
        keep_learners: bool = False,
        warm_start: Path | None = None,
    ) -> None:
        """Restore the learners from the checkpoint, or make new ones that learn the source.

        `fresh` ignores the checkpoint. `keep_learners` goes on with learners that have learned another source, or the
        same one at another place, if its classes are the same. `warm_start` is a file of learners that have learned the
        source; if it does not exist it is written after the warm-up. A private session writes only their weights to it,
        and uses them only to `reset` the learners.
        """
        self._public, self._warm_start = public, warm_start
        self.memory.reserve(HELD * self.settings.query_size * math.prod(public.source.shape))
        identity = self._checkpoints.identity = self.settings.identity | {STAMP: public.stamp}
        if fresh and delete_checkpoint(self.folder):
            self.observer.note("Starting over with new learners.")
        if keep_learners and carry_over(self.folder, identity, public.source.classes, self.settings.FOLDER):
            self.observer.note("Going on with the learners of other public images, which have the same classes.")
        if stored := restore_method(self._kind, public, self.settings, self.folder, identity):
            self.method, progress = stored
            self._check_ledger(progress)
            self.restored = progress
            self.learned, self.warmup_seconds = int(progress["queries"]), float(progress["warmup_seconds"])
        else:
            if warm_start and self.settings.PRIVATE:
                warm_start.unlink(missing_ok=True)
            if needs_pretrained_weights(public.source.shape, self.settings.options):
                self.observer.note(RANDOM_WEIGHTS)
            self._warm_up()
        self.observer.note(self.method.in_words)
        self.phase = "proving"

    def start(self, after: int | None = None) -> None:
        """Prove that burning works, and begin the ledger.

        `after` is the number of the query before the next one. By default numbers go on where the receipts end, so
        that no two queries have the same number after a crash.
        """
        number = max(self.ledger.last_query, self.learned) if after is None else after
        self.log.write("started", burn=self.settings.options.burn, query=number)
        if scan := self.prover.prove_at_start(self.method, self.observer):
            self.log.write("proved", found=scan.found, scanned=scan.scanned, seconds=scan.seconds)
        self.ledger.begin(self.settings.model_dump(mode="json"), after=number, scan=scan.as_numbers() if scan else None)
        self.history.begin(self.method, number, self.learned)
        self.phase = "ready"
        if self.restored is None:
            self._checkpoints.write(self._snapshot())  # a folder that takes no checkpoint is an error now, not later
        else:
            if self.restored.get("ledger") != self.ledger.id:
                self._checkpoints.amend(self._ledger_state())
            self.observer.note(f"Going on with learners that have learned from {self.learned} queries.")

    # The loop

    def take(
        self,
        query: Query,
        *,
        commit: Commit | None = None,
        adapt: bool | Tensor = True,
        reason: Reason = "not asked to adapt",
        order: Order | None = None,
        owners: Tensor | None = None,
        early: Callable[[Processed], None] | None = None,
        idle_steps: int = 0,
        free: Callable[[], bool] = lambda: True,
    ) -> Processed:
        """Adapt to a query, predict it and burn it.

        Parameters
        ----------
        query
            The query. It is erased whatever happens.
        commit
            Called with the prediction, the query's number and the seconds it took. When it returns, everything that
            must survive a crash is on disk; only then is the receipt written.
        adapt
            False predicts without learning. Booleans for each sample say which of them may be learned.
        reason
            Why the query is predicted only, if nothing of it may be learned.
        order
            Whether to adapt or to predict first, instead of what the settings say.
        owners
            The number of each sample's owner. Nobody's answer depends on another's samples in the query.
        early
            Called with the answer before the query is burned, if `idle_steps` are to follow. The ledger has noted the
            answer then, but there is no receipt yet.
        idle_steps
            Further steps on a query after `early`, as long as `free` returns true.
        """
        started, number = time.perf_counter(), self.ledger.last_query + 1
        rows = adapt if isinstance(adapt, Tensor) else None
        wanted = bool(adapt if rows is None else rows.any())
        learns, samples = wanted and self.adapting, 0
        answered: list[Processed] = []  # what `early` was called with

        def answer(prediction: Prediction) -> None:
            assert early
            seconds = time.perf_counter() - started
            answered.append(Processed(prediction, self.ledger.answered(), number, seconds))
            early(answered[0])

        idle = Idle(idle_steps, answer, free) if early and idle_steps else None
        try:
            with query:
                samples = len(query)
                if learns:
                    prediction = self.method.step(query, order, rows, idle, owners)
                else:
                    prediction = self.method.predict(query, owners).only("adaptation paused" if wanted else reason)
        except BadQuery:
            self.counts.refused += 1
            self._write_receipt(samples, query.wiped, None)
            self.observer.query(self.counts)
            raise
        except Exception:
            if answered:  # the learners are as they were before the query
                self._write_receipt(samples, query.wiped, None)
            raise
        self.learned += learns
        seconds = answered[0].seconds if answered else time.perf_counter() - started
        if commit:
            commit(prediction, number, seconds)
        scan = self.prover.prove_after(number, self.method)
        receipt = self._write_receipt(samples, query.wiped, scan)
        names = [self.method.source.classes[label] for label in prediction.labels.tolist()]
        self.counts.add(prediction, names, query=number, seconds=seconds, wiped=query.wiped)
        self.log.write("query", query=number, seconds=round(seconds, 4), wiped=query.wiped, **prediction.numbers)
        if prediction.adaptation.restored:
            self.observer.note(self.counts.restored[-1])
            self.log.write("restored", query=number)
        if residue := residue_of(scan):
            self.fail(residue)
            raise residue
        if not prediction.adaptation.predicted_only:
            self.history.learned()
        if learns:
            self.spacing.add(prediction.adaptation)
        saved = self._store(number) if learns and self.spacing.due else None
        self.observer.query(self.counts)
        return Processed(prediction, receipt, number, seconds, saved)

    def checkpoint(self) -> bool:
        """Write a checkpoint, unless it would be too close to the last one; see `Spacing`.

        Returns False if it could not be written; a durable session fails then.
        """
        if self.spacing.missing:
            if count := self.spacing.learned:
                what = "The last learned query is" if count == 1 else f"The last {count} learned queries are"
                self.observer.note(f"{what} not in the checkpoint, because it would reveal so few.")
            return True
        return self._write_checkpoint()

    def store_progress(self) -> None:
        """Write the current progress to the checkpoint, and leave the learners in it as they are."""
        self._checkpoints.amend(self._progress() | self._ledger_state())

    def stored_method(self) -> Method:
        """The method as the checkpoint has it, which is all that may be left on disk."""
        if not self.spacing.changed:
            return self.method
        stored = restore_method(self._kind, self._public, self.settings, self.folder, self._checkpoints.identity)
        if not stored:
            raise BadCheckpoint(f"The checkpoint in {self.folder} is gone.", "Run the same command again.")
        return stored[0]

    def reset(self) -> None:
        """Go back to learners that have learned the source and nothing else."""
        self._warm_up()
        self.learned = 0
        self.history.begin(self.method, self.ledger.last_query, 0)
        self._write_checkpoint()
        self.log.write("reset", query=self.ledger.last_query)

    def roll_back(self, **wanted: Any) -> Moment:
        """Go back to a kept state, which `wanted` describes as in `History.find`. Receipts and counts stay."""
        query = self.ledger.last_query
        moment = self.history.find(query, **wanted)
        self.history.go_back(self.method, moment, query)
        self.learned = moment.learned
        self._write_checkpoint()  # of a state that was stored before
        self.log.write("rollback", query=query, to=moment.query)
        return moment

    def fail(self, error: CrodoboError) -> None:
        """Note the first error that ends the session."""
        self.failure = self.failure or error

    # Closing

    def close(self, end: End = "finished") -> None:
        """Write the closing entry of the ledger and release everything. Calling it again does nothing."""
        try:
            self.prover.close()
            self._checkpoints.close()
            self.ledger.close(end)
            if self.phase == "ready":
                self.log.write("ended", end=end, query=self.ledger.last_query, **self.counts.totals())
        finally:
            self.phase = "closed"
            self._resources.close()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close("failed" if self.failure else "finished")
            return
        with suppress(CrodoboError):  # the first error is the one to report
            self.close("stopped" if issubclass(kind, Interrupted) else "failed")

    # Details

    def _warm_up(self) -> None:
        options, complete = self.settings.options, not self.settings.PRIVATE
        made = warm_learners(self._public, options, self.loading, self._warm_start, complete=complete)
        learners, self.warmup_seconds = made
        self.method = make_method(self._kind, self._public, learners, options)

    def _write_checkpoint(self) -> bool:
        saved = self._checkpoints.save(self._snapshot())
        if saved:
            self.spacing.stored()
        return saved

    def _store(self, number: int) -> Future[None] | None:
        """Write the checkpoint that is due after a query, and keep the same state in the history if it is time."""
        saved = self._checkpoints.write_later(self._snapshot()) if self._durable else None
        if saved:
            self.spacing.stored()
        elif not self._write_checkpoint():
            return None
        self.history.stored(self.method, number, self.learned)
        return saved

    def _write_receipt(self, samples: int, wiped: int, scan: Scan | None) -> str:
        try:
            return self.ledger.burned(samples=samples, wiped=wiped, scan=scan.as_numbers() if scan else None)
        except CrodoboError as error:
            self.fail(error)
            raise

    def _snapshot(self) -> CheckpointData:
        progress = {
            "queries": self.learned,
            "warmup_seconds": self.warmup_seconds,
            CLASSES: list(self._public.source.classes),
        }
        progress |= self._progress() | self._ledger_state()
        return CheckpointData(self.method.state(), progress, self.ledger.last_query)

    def _ledger_state(self) -> dict[str, str | None]:
        """What the checkpoint says about the ledger, so that another one cannot take its place unnoticed."""
        return {"ledger": self.ledger.id, "ledger_head": self.ledger.head}

    def _check_ledger(self, progress: dict[str, Any]) -> None:
        """Refuse the ledger of another session. A new one may begin at any time."""
        if self.ledger.id not in (None, progress.get("ledger", self.ledger.id)):
            problem = f"The ledger in {self.folder} is not the one that belongs to the checkpoint."
            raise BadData(problem, "Put the right one back, or move this one away to begin a new one.")
