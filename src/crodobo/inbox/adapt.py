"""Adapting to private images in a folder: each is predicted, its row is written, and then the image is deleted.

An image is deleted only after its prediction is on disk, and predicted only while it has none. So whenever the process
is killed, an image either has no prediction and is taken again, or has one and is deleted at the next start.
"""

import contextlib
import json
import statistics
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from crodobo.burn.levels import BURNED
from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction
from crodobo.core.process import peak_memory
from crodobo.data import list_public
from crodobo.data.prefetch import prefetch
from crodobo.errors import CrodoboError, Interrupted
from crodobo.inbox.arrivals import Arrival, Inbox
from crodobo.inbox.counts import FileCounts
from crodobo.inbox.places import check_places, check_source
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.stream import Stream
from crodobo.session.model import save_model
from crodobo.session.session import Session
from crodobo.storage.files import write_atomically


def adapt(settings: AdaptSettings, *, fresh: bool = False, observer: Observer | None = None) -> dict[str, Any]:
    """Adapt to the images of an inbox, predict them and delete them. Returns a summary in numbers.

    The learners go on from the checkpoint in the state folder, unless `fresh` makes new ones.
    """
    inbox = check_inbox(settings)
    counts = FileCounts()
    session = Session(settings, settings.state, observer=observer, counts=counts)
    with session, inbox.locked():
        public = list_public(settings.benchmark, settings.image_size, settings.data)
        check_source(settings, public.listing)
        columns = tuple(f"p({name})" for name in public.classes) if settings.probabilities else ()
        with contextlib.closing(PredictionFile(settings.predictions, columns)) as predictions:
            done = finish_deleting(inbox, predictions, counts)
            if counts.deleted_late:
                session.observer.note(f"Deleted {counts.deleted_late} files that were predicted before the last stop.")
            session.load(public.load(settings.cache_size, session.loading), fresh=fresh)
            session.start(after=predictions.queries)
            take_all(session, Stream(settings, inbox, session, counts, done), predictions, settings)
        summary = summarise(settings, session, counts)
        write_summary(settings, session, summary)
        if session.stop.requested and not settings.watch:
            raise Interrupted(f"Stopped after {counts.samples} files.", "Run the same command to go on.")
        if session.stop.requested:
            session.close("stopped")
    return summary


def check_inbox(settings: AdaptSettings) -> Inbox:
    """The inbox of these settings, unless it does not exist or would hold other files."""
    check_places(settings)
    return Inbox(settings.inbox, settings.quarantine, recursive=settings.recursive, keep_files=settings.keep_files)


def take_all(session: Session, stream: Stream, predictions: PredictionFile, settings: AdaptSettings) -> None:
    """Take every query of the stream. The rows are on disk and the files deleted before the receipt is written."""
    names = session.method.source.classes

    def write_rows_and_delete(arrivals: list[Arrival], prediction: Prediction, number: int, seconds: float) -> None:
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        rows = []
        for place, (arrival, label) in enumerate(zip(arrivals, prediction.labels.tolist(), strict=True)):
            values = [names[label], f"{float(prediction.confidence[place]):.6f}", str(number), moment]
            if settings.probabilities:
                values += [f"{value:.6f}" for value in prediction.probabilities[place].tolist()]
            rows.append((arrival, tuple(values)))
        predictions.append(rows)
        stream.finished(arrivals)

    session.observer.streaming(0)
    session.counts.started = time.monotonic()
    with contextlib.closing(prefetch(stream)) as queries, contextlib.closing(stream):  # type: ignore[type-var]
        for query, arrivals in queries:
            session.take(query, commit=partial(write_rows_and_delete, arrivals))
            if session.stop.requested:
                break
    session.checkpoint()


def finish_deleting(inbox: Inbox, predictions: PredictionFile, counts: FileCounts) -> set[Arrival]:
    """Delete files that have their predictions already. Returns those that are kept."""
    half_deleted = inbox.half_deleted()
    predicted = predictions.already_predicted(half_deleted)
    for arrival in half_deleted:
        inbox.finish_deletion(arrival, predicted=arrival in predicted)
        counts.deleted_late += arrival in predicted
    done = predictions.already_predicted(inbox.scan())
    if inbox.keep_files:
        return done
    for arrival in done:
        counts.deleted_late += inbox.delete(arrival)
    return set()


def summarise(settings: AdaptSettings, session: Session, counts: FileCounts) -> dict[str, Any]:
    """The content of summary.json: numbers and settings, nothing of any image."""
    return {
        "method": settings.method,
        "predicted": counts.samples,
        "quarantined": counts.quarantined,
        "deleted_late": counts.deleted_late,
        "kept_files": settings.keep_files,
        "queries": counts.queries,
        "queries_in_all": session.learned,
        "classes": dict(counts.classes.most_common()),
        "mean_confidence": counts.confidence / counts.samples if counts.samples else None,
        "agreement": counts.mean("agreement"),
        "kept": counts.mean("kept"),
        "estimate": counts.estimate._asdict() if counts.estimate else None,
        "skipped_updates": counts.skipped,
        "predicted_only": dict(counts.predicted_only),
        "restored_weights": counts.restored,
        "seconds_per_query": statistics.median(counts.seconds) if counts.seconds else None,
        "files_per_second": counts.rate,
        "peak_rss_mb": peak_memory(),
        "burned": BURNED[settings.options.burn],
        "learning": session.method.in_words,
        "predictions": str(settings.predictions),
        "settings": settings.model_dump(mode="json"),
        "proof": session.prover.scan.as_numbers() if session.prover.scan else None,
    }


def write_summary(settings: AdaptSettings, session: Session, summary: dict[str, Any]) -> None:
    """Write the model and the summary to the state folder."""
    try:
        save_model(settings.state / "model.safetensors", session.method)
        write_atomically(settings.state / "summary.json", json.dumps(summary, indent=2) + "\n")
    except OSError as error:
        problem = f"The model could not be written to {settings.state} ({error.strerror}). No prediction is lost."
        raise CrodoboError(problem, "Put that right, then run the same command to go on.") from None
