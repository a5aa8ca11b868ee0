"""The real job: private images are taken from a folder, adapted to, predicted, and deleted.

An image is deleted only after its prediction is on disk, and predicted only while it has none. So at whatever moment
the process is killed, an image is either there without a prediction, and is taken again, or has one, and is deleted
when the process starts again.
"""

import contextlib
import hashlib
import json
import os
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crodobo.augment import Augment
from crodobo.checkpoint import delete_checkpoint, load_checkpoint, save_checkpoint
from crodobo.config import AdaptSettings, DataSettings, Views
from crodobo.data.assemble import DEFAULT_SIZE, Watcher, augment_of, classes_of, make_source, read_source
from crodobo.data.classes import common_names
from crodobo.data.decode import decode
from crodobo.data.listing import Listing
from crodobo.data.pictures import Files
from crodobo.data.presets import Preset, get_preset
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint, BadImage, BadSettings, CrodoboError, Interrupted
from crodobo.files import sole_user, write_atomically
from crodobo.inbox.arrivals import PATIENCE, SETTLE, Arrival, Changed, Inbox
from crodobo.inbox.predictions import PredictionFile
from crodobo.interrupt import StopSignal
from crodobo.learner import make_learners, warm_up
from crodobo.methods import Method, get_method
from crodobo.model import save_model
from crodobo.outcome import BURNED, KEPT, peak_memory
from crodobo.prediction import Prediction
from crodobo.prefetch import ahead
from crodobo.query import Query
from crodobo.run import Reporter, check_runs_online
from crodobo.source import Source

POLL = 0.25  # seconds between two looks into a folder that has nothing new
PAUSE = 4  # or so many times as long as a look takes, where that is more


@dataclass
class Tally:
    """What has been done since the start, in numbers; nothing of any image."""

    predicted: int = 0
    quarantined: int = 0
    deleted_late: int = 0
    waiting: int = 0
    queries: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    agreement: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    kept: deque[float] = field(default_factory=lambda: deque(maxlen=50))
    confidence: float = 0.0  # sum over all samples
    classes: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, prediction: Prediction, names: list[str], seconds: float) -> None:
        """Count a query."""
        self.queries += 1
        self.predicted += len(names)
        self.classes.update(names)
        self.confidence += float(prediction.confidence.sum())
        self.seconds.append(seconds)
        self.skipped += prediction.adaptation.skipped
        if prediction.agreement is not None:
            self.agreement.append(prediction.agreement)
        if prediction.adaptation.kept is not None:
            self.kept.append(prediction.adaptation.kept)

    @property
    def rate(self) -> float:
        """Files predicted in a second."""
        return self.predicted / max(1e-9, time.monotonic() - self.started)


class Watching(Reporter):
    """A reporter that is also told how a stream of files is doing."""

    def tally(self, tally: Tally) -> None:
        """A query has been predicted, its files are gone; or nothing has come for a while."""


def adapt(settings: AdaptSettings, *, fresh: bool = False, reporter: Watching | None = None) -> dict[str, Any]:
    """Adapt to the images of an inbox, predict them, delete them; a summary in numbers.

    What is learned goes on from the checkpoint beside the predictions, unless `fresh` starts the learners anew.
    """
    reporter = reporter or Watching()
    kind = get_method(settings.method)
    check_runs_online(kind, settings.options)
    check_places(settings)
    inbox = Inbox(settings.inbox, settings.quarantine, recursive=settings.recursive, keep_files=settings.keep_files)
    with sole_user(settings.state, "--predictions"), inbox.to_oneself(), StopSignal() as stop:
        preset = get_preset(settings.preset) if settings.preset else None
        size = settings.image_size or (preset.run.get("image_size") if preset else None) or DEFAULT_SIZE
        listing = read_source(settings.data, preset)
        check_source(settings, listing)
        names = common_names(listing.counts, {}, classes_of(settings.data, preset).names)
        columns = tuple(f"p({name})" for name in names) if settings.probabilities else ()
        predictions = PredictionFile(settings.predictions, columns)
        try:
            tally = Tally()
            done = finish_deleting(inbox, predictions, tally)
            if tally.deleted_late:
                reporter.note(f"deleted {tally.deleted_late} files that had their predictions before the last stop")
            watcher = Watcher(note=reporter.note, progress=reporter.reading)
            source = make_source(listing, names, settings.data, size, settings.cache_size, watcher)
            augment = augment_for(settings.data, preset, size)
            identity = settings.identity | {"stamp": stamp_of(listing, names)}
            method, queries_before = make_ready(settings, source, augment, identity, fresh, reporter, stop)
            stream = Stream(settings, inbox, source.shape, done, stop, tally, reporter)
            work_off(settings, method, stream, predictions, identity, queries_before, tally, reporter, stop)
            summary = summarise(settings, tally, queries_before)
            with writing_to(settings.state):
                save_model(settings.state / "model.safetensors", method)
                write_atomically(settings.state / "summary.json", json.dumps(summary, indent=2) + "\n")
        finally:
            predictions.close()
        if stop.requested and not settings.watch:
            raise Interrupted(f"stopped after {tally.predicted} files; the same command goes on with the rest")
    return summary


def check_places(settings: AdaptSettings) -> None:
    """Refuse folders that would make files of others be taken for images that arrive, and deleted."""
    inbox = settings.inbox.resolve()
    for path, what in (
        (settings.predictions, "the predictions"),
        (settings.state, "the learners' state"),
        (settings.data.source, "the source"),
        (settings.data.folder, "the preset's folder"),
    ):
        if path and path.resolve().is_relative_to(inbox):
            raise BadSettings(f"{what} cannot be in the inbox: {path} is in {settings.inbox}; name another place")


def check_source(settings: AdaptSettings, listing: Listing) -> None:
    """Refuse an inbox that holds images of the source: they would be deleted."""
    if isinstance(listing.pictures, Files):
        inbox, root = os.path.join(settings.inbox.resolve(), ""), listing.pictures.root.resolve()
        for name in listing.pictures.names:
            if os.path.normpath(os.path.join(root, name)).startswith(inbox):
                raise BadSettings(
                    f"the inbox {settings.inbox} holds images of the source, {name} for one, which would be deleted; "
                    "name another --inbox"
                )


@contextlib.contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """What fails inside comes out as a sentence."""
    try:
        yield
    except OSError as error:
        raise CrodoboError(
            f"the learners' state cannot be written to {folder} ({error.strerror}); no prediction is lost: put that "
            "right, then the same command goes on"
        ) from None


def finish_deleting(inbox: Inbox, predictions: PredictionFile, tally: Tally) -> set[Arrival]:
    """Delete files that have their prediction already; those that are to be kept are returned."""
    done = predictions.already_there(inbox.scan())
    if inbox.keep_files:
        return done
    for arrival in done:
        tally.deleted_late += inbox.delete(arrival)
    return set()


def augment_for(data: DataSettings, preset: Preset | None, size: int) -> Augment:
    """Views of the images."""
    return augment_of(data.views or (preset.views if preset else Views()), size)


def stamp_of(listing: Listing, names: list[str]) -> str:
    """Changes when the source does: its images, their labels, the order of the classes."""
    content = repr((listing.pictures.stamp(), list(listing.labels), names))
    return f"{len(listing.labels)} images, {hashlib.sha256(content.encode(errors='surrogateescape')).hexdigest()[:16]}"


def make_ready(
    settings: AdaptSettings,
    source: Source,
    augment: Augment,
    identity: dict[str, Any],
    fresh: bool,
    reporter: Reporter,
    stop: StopSignal,
) -> tuple[Method, int]:
    """The method as the checkpoint has it, or after a warm-up; and how many queries it has met."""
    options = settings.options
    if fresh and delete_checkpoint(settings.state):
        reporter.note("starting with new learners; the predictions made so far stay")
    stored = load_stored(settings.state, identity)
    learners = make_learners(source, options.learners, options.seed, options)
    if not stored:
        engine = make_engine(options.learners, parallel=options.parallel, threads=options.threads)

        def after_step() -> None:
            if stop.requested:
                raise Interrupted("stopped during the warm-up, before the first file; start again")
            reporter.warmed_up_step()

        reporter.warming_up(options.warmup * options.learners)
        warm_up(learners, engine, source, augment, after_step)
    method = get_method(settings.method)(source, augment=augment, **dict(options) | {"learners": learners})
    if not stored:
        with writing_to(settings.state):
            save_checkpoint(settings.state, method.state(), identity, {"queries": 0})
        return method, 0
    tensors, progress = stored
    try:
        method.load_state(tensors)
    except (KeyError, RuntimeError) as error:
        raise BadCheckpoint(
            f"the checkpoint in {settings.state} is of another version of crodobo; --fresh starts with new learners"
        ) from error
    reporter.note(f"going on with learners that have met {progress['queries']} queries")
    return method, int(progress["queries"])


def load_stored(state: Path, identity: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The checkpoint, if there is one for these settings."""
    try:
        return load_checkpoint(state, identity)
    except BadCheckpoint as error:
        sentence = str(error).split("; ")[0]
        raise BadCheckpoint(
            f"{sentence}; give the same settings, --fresh to start with new learners, or other --predictions"
        ) from error


def work_off(
    settings: AdaptSettings,
    method: Method,
    stream: "Stream",
    predictions: PredictionFile,
    identity: dict[str, Any],
    queries_before: int,
    tally: Tally,
    reporter: Watching,
    stop: StopSignal,
) -> None:
    """Each query: adapt, predict, put the predictions on disk, delete the files."""
    names = method.source.classes

    def checkpoint() -> None:
        try:
            save_checkpoint(settings.state, method.state(), identity, {"queries": queries_before + tally.queries})
        except OSError as error:
            reporter.note(f"no checkpoint could be written ({error.strerror}); the stream goes on without")

    reporter.streaming(0)
    tally.started = time.monotonic()
    first = predictions.queries + 1  # learners that a crash has thrown back meet new queries, with new numbers
    with contextlib.closing(ahead(stream)) as queries, contextlib.closing(stream):  # type: ignore[type-var]
        for query, arrivals in queries:
            started = time.perf_counter()
            with query:
                prediction = method.step(query)
            labels = [names[number] for number in prediction.labels.tolist()]
            moment = datetime.now(UTC).isoformat(timespec="seconds")
            number = str(first + tally.queries)
            rows = []
            for place, (arrival, label) in enumerate(zip(arrivals, labels, strict=True)):
                values: tuple[str, ...] = (label, f"{float(prediction.confidence[place]):.6f}", number, moment)
                if settings.probabilities:
                    values += tuple(f"{value:.6f}" for value in prediction.probabilities[place].tolist())
                rows.append((arrival, values))
            predictions.append(rows)
            stream.finished(arrivals)
            tally.add(prediction, labels, time.perf_counter() - started)
            reporter.tally(tally)
            if tally.queries % settings.checkpoint_every == 0:
                checkpoint()
            if stop.requested:
                break
    checkpoint()


class Stream:
    """Queries made of what is in the inbox: full ones, or what has come when the oldest has waited long enough."""

    def __init__(
        self,
        settings: AdaptSettings,
        inbox: Inbox,
        shape: tuple[int, ...],
        done: set[Arrival],
        stop: StopSignal,
        tally: Tally,
        reporter: Watching,
    ) -> None:
        self._settings, self._inbox, self._stop = settings, inbox, stop
        self._shape = (shape[0], shape[1], shape[2])
        self._taken: set[Arrival] = done  # at work, or to be kept although they are predicted
        self._doubtful: set[Arrival] = set()  # could not be decoded, but have not been there for long
        self._tally, self._reporter = tally, reporter
        self._closed = False

    def __iter__(self) -> Iterator[tuple[Query, list[Arrival]]]:
        images: list[Tensor] = []
        arrivals: list[Arrival] = []
        since = 0.0  # when the oldest image of the query was ready

        def query() -> tuple[Query, list[Arrival]]:
            batch = torch.stack(images)
            for image in images:
                image.zero_()
            made = Query(batch), list(arrivals)
            images.clear()
            arrivals.clear()
            return made

        try:
            while not self._ending():
                looked = time.monotonic()
                ready, others = self._look()
                pause = max(POLL, PAUSE * (time.monotonic() - looked))
                taken = 0
                for arrival in ready:
                    if self._ending():
                        return
                    image = self._take(arrival)
                    self._tally.waiting -= 1
                    if image is None:
                        continue
                    taken += 1
                    since = since if images else time.monotonic()
                    images.append(image)
                    arrivals.append(arrival)
                    if len(images) == self._settings.query_size:
                        yield query()
                at_the_end = not (self._settings.watch or ready or others)
                if images and (at_the_end or time.monotonic() - since >= self._settings.max_wait):
                    yield query()
                if at_the_end:
                    return
                if not taken:
                    self._reporter.tally(self._tally)
                    self._sleep(min(pause, since + self._settings.max_wait - time.monotonic()) if images else pause)
        finally:
            for image in images:
                image.zero_()

    def close(self) -> None:
        """Make no more queries."""
        self._closed = True

    def finished(self, arrivals: list[Arrival]) -> None:
        """These files have their predictions on disk."""
        for arrival in arrivals:
            if not self._inbox.keep_files:
                self._inbox.delete(arrival)
                self._taken.discard(arrival)

    def _ending(self) -> bool:
        return self._closed or self._stop.requested

    def _sleep(self, seconds: float) -> None:
        """Wait, but not for longer than it takes to notice the end."""
        end = time.monotonic() + seconds
        while not self._ending() and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, POLL))

    def _look(self) -> tuple[list[Arrival], bool]:
        """Files to take, and whether there are others whose time has not come: they may still be written to."""
        there = self._inbox.scan()
        if self._inbox.keep_files:
            self._taken &= set(there)  # of files that are gone nothing is remembered
        self._doubtful &= set(there)
        untaken = [arrival for arrival in there if arrival not in self._taken]
        ready = [arrival for arrival in untaken if self._inbox.unchanged_for(arrival) >= self._patience(arrival)]
        self._tally.waiting = len(ready)
        return ready, len(ready) < len(untaken)

    def _patience(self, arrival: Arrival) -> float:
        """For how long a file has to be unchanged; one that could not be decoded is tried again once, much later."""
        return PATIENCE if arrival in self._doubtful else SETTLE

    def _take(self, arrival: Arrival) -> Tensor | None:
        """The decoded image; None for a file that was put away, or is left for later."""
        try:
            content = self._inbox.read(arrival)
            pixels = decode(content, self._shape, self._settings.data.fit)
        except Changed:
            return None
        except BadImage as error:
            if self._inbox.unchanged_for(arrival) < PATIENCE:
                self._doubtful.add(arrival)
            else:
                self._tally.quarantined += self._inbox.put_away(arrival, str(error))
            return None
        self._taken.add(arrival)
        return torch.from_numpy(pixels)


def summarise(settings: AdaptSettings, tally: Tally, queries_before: int) -> dict[str, Any]:
    """What a stop leaves to read: numbers and settings, nothing of any image."""
    return {
        "method": settings.method,
        "predicted": tally.predicted,
        "quarantined": tally.quarantined,
        "deleted_late": tally.deleted_late,
        "kept_files": settings.keep_files,
        "queries": tally.queries,
        "queries_in_all": queries_before + tally.queries,
        "classes": dict(tally.classes.most_common()),
        "mean_confidence": tally.confidence / tally.predicted if tally.predicted else None,
        "agreement": statistics.fmean(tally.agreement) if tally.agreement else None,
        "kept": statistics.fmean(tally.kept) if tally.kept else None,
        "skipped_updates": tally.skipped,
        "seconds_per_query": statistics.median(tally.seconds) if tally.seconds else None,
        "files_per_second": tally.rate,
        "peak_rss_mb": peak_memory(),
        "burned": KEPT if get_method(settings.method).keeps_target else BURNED,
        "predictions": str(settings.predictions),
        "settings": settings.model_dump(mode="json"),
    }
