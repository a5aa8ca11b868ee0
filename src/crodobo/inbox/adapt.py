"""The real job: private images are taken from a folder, adapted to, predicted, and deleted.

An image is deleted only after its prediction is on disk, and predicted only while it has none. So at whatever moment
the process is killed, an image is either there without a prediction, and is taken again, or has one, and is deleted
when the process starts again.
"""

import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from crodobo.burn.levels import BURNED, memory_for
from crodobo.burn.proof import check_proving, places, prove_at_start, try_out
from crodobo.core.memory import Memory
from crodobo.core.observer import Observer
from crodobo.core.process import peak_memory
from crodobo.core.source import Source
from crodobo.data.assemble import augment_of, classes_of, make_source, read_source, size_of, stamp_of
from crodobo.data.classes import common_names
from crodobo.data.prefetch import ahead
from crodobo.data.presets import get_preset, is_preset
from crodobo.engine import make_engine
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted, Residue
from crodobo.inbox.arrivals import Arrival, Inbox
from crodobo.inbox.places import check_places, check_source
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.stream import Stream
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import End, Ledger
from crodobo.ledger.signing import load_signing_key
from crodobo.methods import Method, get_method
from crodobo.methods.base import check_runs_online
from crodobo.nn.learner import make_learners, warm_up
from crodobo.session.checkpoint import delete_checkpoint, load_checkpoint, save_checkpoint
from crodobo.session.counts import Tally, Watching
from crodobo.session.events import Log
from crodobo.session.model import save_model
from crodobo.session.stop import StopSignal
from crodobo.storage.files import write_atomically
from crodobo.storage.lock import locked_folder
from crodobo.views.augment import Augment


def adapt(
    settings: AdaptSettings,
    *,
    fresh: bool = False,
    sign_key: Path | None = None,
    log_file: Path | None = None,
    reporter: Watching | None = None,
) -> dict[str, Any]:
    """Adapt to the images of an inbox, predict them, delete them; a summary in numbers.

    What is learned goes on from the checkpoint beside the predictions, unless `fresh` starts the learners anew. Each
    query's receipt goes to the ledger there, signed if there is a `sign_key`. Events go to the `log_file`.
    """
    reporter = reporter or Watching()
    kind = get_method(settings.method)
    check_runs_online(kind, settings.options)
    check_places(settings, log_file)
    key = load_signing_key(sign_key) if sign_key else None
    check_proving(settings.prove_every, settings.options.burn)
    memory = memory_for(settings.options.burn)
    inbox = Inbox(settings.inbox, settings.quarantine, recursive=settings.recursive, keep_files=settings.keep_files)
    with (
        locked_folder(settings.state, private=True, settings=("predictions",)),
        inbox.to_oneself(),
        Ledger(settings.state / LEDGER, key) as ledger,
        Log(log_file) as log,
        StopSignal() as stop,
    ):
        preset = get_preset(settings.benchmark) if is_preset(settings.benchmark) else None
        size = size_of(settings.image_size, preset)
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
            source = make_source(listing, names, settings.data, size, settings.cache_size, reporter)
            augment = augment_of(settings.data, preset, size)
            identity = settings.identity | {"stamp": stamp_of(listing, names)}
            method, queries_before = make_ready(settings, source, augment, identity, fresh, reporter, stop)
            log.write("started", burn=settings.options.burn, query=predictions.queries)
            proof = prove_at_start(method, memory, settings.query_size, reporter.note)
            scan = proof.as_numbers() if proof else None
            if proof:
                log.write("proved", found=proof.found, scanned=proof.scanned, seconds=proof.seconds)
            stream = Stream(settings, inbox, source.shape, memory, done, stop, tally, reporter)
            ledger.begin(settings.model_dump(mode="json"), after=predictions.queries, scan=scan)
            work = Work(settings, method, memory, predictions, ledger, log, identity, queries_before)
            end: End = "failed"
            try:
                work_off(work, stream, tally, reporter, stop)
                end = "stopped" if stop.requested else "finished"
            finally:
                log.write("ended", end=end, files=tally.predicted, quarantined=tally.quarantined)
            summary = summarise(settings, tally, queries_before) | {"proof": scan}
            with writing_to(settings.state):
                save_model(settings.state / "model.safetensors", method)
                write_atomically(settings.state / "summary.json", json.dumps(summary, indent=2) + "\n")
        finally:
            predictions.close()
        if stop.requested and not settings.watch:
            raise Interrupted(f"stopped after {tally.predicted} files; the same command goes on with the rest")
    return summary


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
    half = inbox.half_deleted()
    predicted = predictions.already_there(half)
    for arrival in half:
        inbox.settle(arrival, predicted=arrival in predicted)
        tally.deleted_late += arrival in predicted
    done = predictions.already_there(inbox.scan())
    if inbox.keep_files:
        return done
    for arrival in done:
        tally.deleted_late += inbox.delete(arrival)
    return set()


def reading(reporter: Observer, stop: StopSignal) -> Callable[[int, int], None]:
    """Progress of decoding the source, which a signal ends: what is decoded stays in the cache."""

    def progress(done: int, total: int) -> None:
        if stop.requested:
            raise Interrupted("stopped while the source was decoded; the same command goes on")
        reporter.reading(done, total)

    return progress


def make_ready(
    settings: AdaptSettings,
    source: Source,
    augment: Augment,
    identity: dict[str, Any],
    fresh: bool,
    reporter: Observer,
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


@dataclass(frozen=True)
class Work:
    """What working off an inbox is done with, and where what it leaves goes."""

    settings: AdaptSettings
    method: Method
    memory: Memory
    predictions: PredictionFile
    ledger: Ledger
    log: Log
    identity: dict[str, Any]
    queries_before: int  # that the learners have met


def work_off(work: Work, stream: Stream, tally: Tally, reporter: Watching, stop: StopSignal) -> None:
    """Each query: adapt, predict, put the predictions on disk, delete the files, write the receipt.

    The receipt comes last, so that it stands for all of that. A kill can leave a query without one, never one without
    its query.
    """
    settings, method, predictions = work.settings, work.method, work.predictions
    names = method.source.classes

    def checkpoint() -> None:
        progress = {"queries": work.queries_before + tally.queries}
        try:
            save_checkpoint(settings.state, method.state(), work.identity, progress)
            work.log.write("checkpoint", query=first - 1 + tally.queries)
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
            seconds = time.perf_counter() - started
            prove_now = settings.prove_every and (tally.queries + 1) % settings.prove_every == 0
            scan = try_out(method, work.memory, settings.query_size) if prove_now else None
            work.ledger.burned(samples=len(arrivals), wiped=query.wiped, scan=scan.as_numbers() if scan else None)
            if scan and scan.finds:
                raise Residue(f"of a test query that was burned, {places(scan)} are still in memory; no more is read")
            tally.add(prediction, labels, seconds)
            work.log.write(
                "query", query=int(number), seconds=round(seconds, 4), wiped=query.wiped, **prediction.numbers
            )
            if prediction.adaptation.restored:
                tally.restored.append(f"query {number}: {prediction.adaptation.restored}")
                reporter.note(tally.restored[-1])
                work.log.write("restored", query=int(number))
            reporter.tally(tally)
            if tally.queries % settings.checkpoint_every == 0:
                checkpoint()
            if stop.requested:
                break
    checkpoint()


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
        "held_queries": tally.held,
        "restored_weights": tally.restored,
        "seconds_per_query": statistics.median(tally.seconds) if tally.seconds else None,
        "files_per_second": tally.rate,
        "peak_rss_mb": peak_memory(),
        "burned": BURNED[settings.options.burn],
        "predictions": str(settings.predictions),
        "settings": settings.model_dump(mode="json"),
    }
