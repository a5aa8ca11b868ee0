"""The event log: known events with known fields, so that nothing of a sample can get into it."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crodobo.core.prediction import Reason
from crodobo.errors import BadData, CrodoboError
from crodobo.ledger.entry import Count, now

FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]


class Event(BaseModel):
    """One line of the log. Unknown fields are refused, and so is any text that is not listed here."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    event: Literal[
        "started", "proved", "query", "checkpoint", "restored", "paused", "resumed", "reset", "rollback", "ended"
    ]
    burn: Literal["strict", "standard", "off"] | None = None
    end: Literal["finished", "stopped", "failed"] | None = None
    query: Count | None = None
    to: Count | None = None
    samples: Count | None = None
    files: Count | None = None
    quarantined: Count | None = None
    seconds: FiniteNumber | None = None
    agreement: FiniteNumber | None = None
    kept: FiniteNumber | None = None
    confidence: FiniteNumber | None = None
    estimated_accuracy: FiniteNumber | None = None
    estimated_accuracy_low: FiniteNumber | None = None
    estimated_accuracy_high: FiniteNumber | None = None
    skipped: Count | None = None
    predicted_only: Reason | None = None
    wiped: Count | None = None
    found: Count | None = None
    scanned: Count | None = None


STANDARD_OUTPUT = Path("-")


class Log:
    """Appends events to a file, one JSON line each. Without a path it only checks them; `-` is standard output."""

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._failing = path, False
        self._descriptor = self._open(path) if path else None

    def _open(self, path: Path) -> int:
        try:
            if path == STANDARD_OUTPUT:
                return os.dup(1)
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError as error:
            problem = f"The log {path} is not writable ({error.strerror})."
            raise BadData(problem, "Choose another file.", settings=("log",)) from None

    def reopen(self) -> None:
        """Open the file again, because it was renamed or deleted. If that fails, events go on to the old file."""
        if self._descriptor is None or self._path in (None, STANDARD_OUTPUT):
            return
        try:
            new = self._open(self._path)
        except BadData as error:
            print(f"{error.problem} Events go on to the old file.", file=sys.stderr)
            return
        os.dup2(new, self._descriptor, inheritable=False)  # another thread may be writing to the descriptor
        os.close(new)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def write(self, event: str, **fields: Any) -> None:
        """Append an event with the current time."""
        try:
            checked = Event(event=event, **fields)  # type: ignore[arg-type]
        except ValidationError as error:
            name = error.errors()[0]["loc"][0]
            what = f"field `{name}`" if name not in Event.model_fields else f"such value for `{name}`"
            raise CrodoboError(f"The event log has no {what}, because it could reveal something of a query.") from None
        if self._descriptor is None:
            return
        line = json.dumps({"time": now()} | checked.model_dump(exclude_none=True))
        try:
            os.write(self._descriptor, line.encode() + b"\n")
            self._failing = False
        except OSError as error:  # the work is done; a full disk must not undo it
            if not self._failing:
                print(f"The event log is not writable ({error.strerror}). Events are lost.", file=sys.stderr)
            self._failing = True
