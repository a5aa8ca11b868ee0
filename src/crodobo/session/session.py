"""The session: the one loop that every stream goes through.

    step ─► burn ─► commit ─► proof? ─► receipt ─► count ─► log ─► checkpoint?

`crodobo run`, `adapt` and `serve` differ in where their queries come from and in what they commit.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

from torch import Tensor

from crodobo.burn.levels import memory_for
from crodobo.burn.scan import Scan
from crodobo.config import Order, SessionSettings
from crodobo.core.counts import Counts
from crodobo.core.observer import Observer
from crodobo.core.prediction import Reason
from crodobo.core.query import Query
from crodobo.errors import BadQuery, CrodoboError, Interrupted
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import End, Ledger
from crodobo.ledger.signing import load_signing_key
from crodobo.methods import get_method
from crodobo.methods.base import check_runs_online
from crodobo.nn.backbones import check_backbone
from crodobo.session.checkpoint import STAMP, delete_checkpoint
from crodobo.session.checkpoint_writer import CheckpointData, CheckpointWriter
from crodobo.session.events import Log
from crodobo.session.history import History, Moment
from crodobo.session.processed import Commit, Processed
from crodobo.session.prover import Prover, is_due, residue_of
from crodobo.session.stop import Stop, StoppableObserver, StopSignal
from crodobo.session.warm_start import PublicData, restore_method, warm_method
from crodobo.storage.lock import locked_folder

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

    def load(self, public: PublicData, *, fresh: bool = False, warm_start: Path | None = None) -> None:
        """Restore the learners from the checkpoint, or make new ones that learn the source.

        `fresh` ignores the checkpoint. `warm_start` is a file of learners that have learned the source; if it does not
        exist it is written after the warm-up.
        """
        self._public, self._warm_start = public, warm_start
        identity = self._checkpoints.identity = self.settings.identity | {STAMP: public.stamp}
        if fresh and delete_checkpoint(self.folder):
            self.observer.note("Starting over with new learners.")
        if stored := restore_method(self._kind, public, self.settings, self.folder, identity):
            self.method, progress = stored
            self.restored = progress
            self.learned, self.warmup_seconds = int(progress["queries"]), float(progress["warmup_seconds"])
        else:
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
        """
        started, number = time.perf_counter(), self.ledger.last_query + 1
        rows = adapt if isinstance(adapt, Tensor) else None
        wanted = bool(adapt if rows is None else rows.any())
        learns, samples = wanted and self.adapting, 0
        try:
            with query:
                samples = len(query)
                if learns:
                    prediction = self.method.step(query, order, rows)
                else:
                    prediction = self.method.predict(query).only("adaptation paused" if wanted else reason)
        except BadQuery:
            self.counts.refused += 1
            self._write_receipt(samples, query.wiped, None)
            self.observer.query(self.counts)
            raise
        self.learned += learns
        seconds = time.perf_counter() - started
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
            self.history.learned(self.method, number, self.learned)
        due = learns and is_due(self.settings.checkpoint_every, self.learned)
        saved = self._checkpoints.save_soon(self._snapshot()) if due else None
        self.observer.query(self.counts)
        return Processed(prediction, receipt, number, seconds, saved)

    def checkpoint(self) -> bool:
        """Write a checkpoint now. Returns whether it was written; a durable session fails if it was not."""
        return self._checkpoints.save(self._snapshot())

    def reset(self) -> None:
        """Go back to learners that have learned the source and nothing else."""
        self._warm_up()
        self.learned = 0
        self.history.begin(self.method, self.ledger.last_query, 0)
        self.checkpoint()
        self.log.write("reset", query=self.ledger.last_query)

    def roll_back(self, **wanted: Any) -> Moment:
        """Go back to a kept state, which `wanted` describes as in `History.find`. Receipts and counts stay."""
        query = self.ledger.last_query
        moment = self.history.find(query, **wanted)
        self.history.go_back(self.method, moment, query)
        self.learned = moment.learned
        self.checkpoint()
        self.log.write("rollback", query=query, to=moment.query)
        return moment

    def fail(self, error: CrodoboError) -> None:
        """Note the first error that ends the session."""
        self.failure = self.failure or error

    # Closing

    def close(self, end: End = "finished") -> None:
        """Write the closing entry of the ledger and release everything. Calling it again does nothing."""
        try:
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
        made = warm_method(self._kind, self._public, self.settings.options, self.loading, self._warm_start)
        self.method, self.warmup_seconds = made

    def _write_receipt(self, samples: int, wiped: int, scan: Scan | None) -> str:
        try:
            return self.ledger.burned(samples=samples, wiped=wiped, scan=scan.as_numbers() if scan else None)
        except CrodoboError as error:
            self.fail(error)
            raise

    def _snapshot(self) -> CheckpointData:
        progress = {"queries": self.learned, "warmup_seconds": self.warmup_seconds} | self._progress()
        return CheckpointData(self.method.state(), progress, self.ledger.last_query)
