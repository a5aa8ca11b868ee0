"""Adapting to private images in a folder: each is predicted, its row is written, and then the image is deleted.

An image is deleted only after its prediction is on disk, and predicted only while it has none. So whenever the process
is killed, an image either has no prediction and is taken again, or has one and is deleted at the next start.
"""

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction
from crodobo.data import list_public
from crodobo.data.prefetch import prefetch
from crodobo.errors import Interrupted, OtherImages
from crodobo.inbox.arrivals import Inbox
from crodobo.inbox.counts import FileCounts
from crodobo.inbox.places import check_places, check_source
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.settings import AdaptSettings
from crodobo.inbox.stream import Stream
from crodobo.inbox.summary import summarise, summary_of_failure, write_model_and_summary
from crodobo.inbox.walk import Arrival, in_words
from crodobo.session.session import Session


def adapt(
    settings: AdaptSettings, *, fresh: bool = False, keep_learners: bool = False, observer: Observer | None = None
) -> dict[str, Any]:
    """Adapt to the images of an inbox, predict them and delete them. Returns a summary in numbers.

    The learners go on from the checkpoint in the state folder, unless `fresh` makes new ones. `keep_learners` goes on
    with them although the public images have changed or moved, if their classes are the same.
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
            for text in notes_at_start(inbox, predictions, counts):
                session.observer.note(text)
            with keeping_offered():
                loaded = public.load(settings.cache_size, session.loading)
                session.load(loaded, fresh=fresh, keep_learners=keep_learners)
            session.start(after=predictions.queries)
            with summary_of_failure(settings, session, inbox, counts):
                take_all(session, Stream(settings, inbox, session, counts, done), predictions, settings)
        stopped = session.stop.requested
        summary = summarise(settings, session, inbox, counts, "stopped" if stopped else "finished")
        write_model_and_summary(settings, session, summary)
        if stopped and not settings.watch:
            raise Interrupted(f"Stopped after {counts.written} files.", "Run the same command to go on.")
        if session.stop.requested:
            session.close("stopped")
    return summary


@contextlib.contextmanager
def keeping_offered() -> Iterator[None]:
    """Add to an error about other public images that the learners can be kept."""
    try:
        yield
    except OtherImages as error:
        remedy = "Keep the learners if the classes are the same, use another folder, or start over."
        raise OtherImages(error.problem, remedy, settings=("keep_learners", *error.settings)) from None


def check_inbox(settings: AdaptSettings) -> Inbox:
    """The inbox of these settings, unless it does not exist or would hold other files."""
    check_places(settings)
    return Inbox(settings.inbox, settings.quarantine, recursive=settings.recursive, keep_files=settings.keep_files)


def notes_at_start(inbox: Inbox, predictions: PredictionFile, counts: FileCounts) -> Iterator[str]:
    """What a user has to know before the first query."""
    if counts.deleted_late:
        yield f"Deleted {counts.deleted_late} files that were predicted before the last stop."
    if predictions.rounded:
        rows = f"A spreadsheet has rounded numbers in {predictions.rounded} rows of {predictions.path}"
        yield f"{rows}, so they no longer identify their files. Files that are still in the inbox are predicted again."
    if inbox.left:
        yield f"Not read in the inbox: {in_words(inbox.left)}."


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
        stream.counts.written += len(rows)
        stream.finished(arrivals)

    session.observer.streaming(0)
    session.counts.started = time.monotonic()
    with contextlib.closing(prefetch(stream)) as queries, contextlib.closing(stream):  # type: ignore[type-var]
        for query, arrivals in queries:
            session.take(query, commit=partial(write_rows_and_delete, arrivals))
            del query, arrivals  # the names too must not wait in memory for the next query
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
    done = predictions.already_predicted(inbox.scan(), exactly=not inbox.keep_files)
    if inbox.keep_files:
        return done
    for arrival in done:
        counts.deleted_late += inbox.delete(arrival)
    return set()
