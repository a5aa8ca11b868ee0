"""The summary of adapting to an inbox: numbers and settings, nothing of any image."""

import contextlib
import json
import statistics
from collections.abc import Iterator
from typing import Any

from crodobo.burn.levels import BURNED
from crodobo.core.process import peak_memory
from crodobo.errors import CrodoboError
from crodobo.inbox.arrivals import Inbox
from crodobo.inbox.counts import FileCounts
from crodobo.inbox.settings import AdaptSettings
from crodobo.ledger.ledger import End
from crodobo.session.model import save_model
from crodobo.session.session import Session
from crodobo.storage.files import write_atomically

NAME = "summary.json"


def summarise(settings: AdaptSettings, session: Session, inbox: Inbox, counts: FileCounts, end: End) -> dict[str, Any]:
    """The content of summary.json."""
    return {
        "method": settings.method,
        "end": end,
        "predicted": counts.written,
        "without_receipt": counts.written - counts.samples,
        "left": left_in(inbox),
        "still_linked": inbox.still_linked,
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
        "ledger": session.ledger.id,
        "proof": session.prover.scan.as_numbers() if session.prover.scan else None,
    }


def left_in(inbox: Inbox) -> dict[str, int]:
    """What is left in the inbox, by reason; nothing if the inbox is gone."""
    with contextlib.suppress(CrodoboError):
        files = 0 if inbox.keep_files else len(inbox.scan())
        return dict(inbox.left) | ({"not predicted yet": files} if files else {})
    return {}


@contextlib.contextmanager
def summary_of_failure(settings: AdaptSettings, session: Session, inbox: Inbox, counts: FileCounts) -> Iterator[None]:
    """Write a summary of what was done before an error, too. That of an earlier run would not fit the predictions."""
    path = settings.state / NAME
    path.unlink(missing_ok=True)
    try:
        yield
    except Exception:
        with contextlib.suppress(CrodoboError, OSError):
            write_atomically(path, as_text(summarise(settings, session, inbox, counts, "failed")))
        without = counts.written - counts.samples
        receipts = f", {without} of them without a receipt" if without else ""
        session.observer.note(f"Until the error, {counts.written} files were predicted{receipts}.")
        raise


def write_model_and_summary(settings: AdaptSettings, session: Session, summary: dict[str, Any]) -> None:
    """Write the model of the checkpoint and the summary to the state folder."""
    try:
        save_model(settings.state / "model.safetensors", session.stored_method())
        write_atomically(settings.state / NAME, as_text(summary))
    except OSError as error:
        problem = f"The model could not be written to {settings.state} ({error.strerror}). No prediction is lost."
        raise CrodoboError(problem, "Put that right, then run the same command to go on.") from None


def as_text(summary: dict[str, Any]) -> str:
    return json.dumps(summary, indent=2) + "\n"
