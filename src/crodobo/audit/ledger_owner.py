"""Which ledger a session's files name: its checkpoint, its summary or its result."""

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

from crodobo.session.checkpoint import NAME as CHECKPOINT
from crodobo.storage.tensors import UnreadableTensors, load_header


class Named(NamedTuple):
    """A file that names a ledger, the ledger's id, and the hash of an entry if the file has one."""

    file: str
    ledger: str
    head: str | None


def named_ledgers(folder: Path) -> list[Named]:
    """The ledgers that the files of a session in this folder name."""
    found = []
    with contextlib.suppress(UnreadableTensors, KeyError, TypeError, AttributeError):
        progress = load_header(folder / CHECKPOINT)["progress"]
        found.append((CHECKPOINT, progress.get("ledger"), progress.get("ledger_head")))
    for name in ("summary.json", "result.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append((name, json.loads((folder / name).read_text(encoding="utf-8")).get("ledger"), None))
    return [Named(file, ledger, head) for file, ledger, head in found if isinstance(ledger, str)]
