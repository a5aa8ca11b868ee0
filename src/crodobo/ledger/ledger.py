"""The ledger: an append-only file with a receipt for each burned query.

It holds numbers, times, random names and its own hashes: nothing of a sample, nothing derived from one, and no file
names. Each entry repeats the hash of the one before, so any change except in the last entry shows in the next.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, Literal, NoReturn, Self

from pydantic import ValidationError

from crodobo import __version__
from crodobo.errors import BadData, CrodoboError, Interrupted
from crodobo.ledger.entry import Answered, AnyEntry, Closed, Header, Receipt, Resumed, now, seal
from crodobo.ledger.signing import SigningKey, make_signature_check
from crodobo.ledger.verify import Verification, verify
from crodobo.ledger.witness import Witness
from crodobo.storage.files import append_durably, sync_folder
from crodobo.storage.lock import try_lock

NAME = "ledger.jsonl"
ENTRY_START = b'{"format":'
SEALED = re.compile(rb',"hash":"[0-9a-f]{64}"\}')
End = Literal["finished", "stopped", "failed"]


class Ledger:
    """The one writer of a ledger. Leaving its `with` block writes the closing entry. A `key` signs each entry.

    An existing ledger is verified first. A last line that a crash tore is cut off; any other damage is refused, and the
    file stays as it is. `begin` creates a new one.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Ledger(Path(folder.name) / "ledger.jsonl") as ledger:
    ...     ledger.begin({"seed": 0})
    ...     receipt = ledger.burned(samples=64, wiped=65536)
    >>> [json.loads(line)["kind"] for line in ledger.path.read_text(encoding="utf-8").splitlines()]
    ['header', 'query', 'closed']
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, key: SigningKey | None = None) -> None:
        self.path = path
        self.id: str | None = None  # its random name, in the header
        self.head: str | None = None  # hash of the last entry
        self.queries = 0  # number of receipts
        self.last_query = 0  # number of the last query that has a receipt or was answered
        self._open_id: str | None = None  # of the receipt that an answered query still has to get
        self._key = key
        self._descriptor: int | None = None
        self._sequence = self._cut = 0
        self._settings: str | None = None  # digest; set between `begin` and `close`
        self._witness: Witness | None = None
        if os.path.lexists(path):
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close("finished")
        else:
            with contextlib.suppress(CrodoboError):  # report the first error, not this one
                self.close("stopped" if issubclass(kind, Interrupted) else "failed")

    def begin(self, settings: dict[str, Any], after: int = 0, scan: dict[str, float] | None = None) -> None:
        """Write the header, or the entry that resumes the ledger.

        `after` is the number of the query before the next one. `scan` are the numbers of the search for a test query.
        """
        if self._descriptor is None:
            self._open()
        self._settings, self.last_query = digest_of(settings), after
        values = {"version": __version__, "after": after, "scan": scan}
        if self.head is None:
            public = self._key.public if self._key else None
            self.id = secrets.token_hex(16)
            self._add(Header, ledger=self.id, public_key=public, **values)
            with contextlib.suppress(OSError):  # some file systems cannot sync a folder
                sync_folder(self.path.parent)
        else:
            self._add(Resumed, cut=self._cut, **values)
        assert self.id
        self._witness = Witness(self.id, lambda: str(self.head), self._key.sign if self._key else None)

    def burned(self, *, samples: int, wiped: int, scan: dict[str, float] | None = None) -> str:
        """Write the receipt of the next query and return its id. When this returns, the receipt is on disk.

        `scan` are the numbers of a search for traces; `found` counts them.
        """
        name, number = self._open_id or secrets.token_hex(16), self.last_query + (self._open_id is None)
        self._add(Receipt, id=name, query=number, samples=samples, wiped=wiped, scan=scan)
        self.last_query, self._open_id = number, None
        self.queries += 1
        return name

    def answered(self) -> str:
        """Note that the next query is answered before it is burned. Returns the id that its receipt will have."""
        name = secrets.token_hex(16)
        self._add(Answered, id=name, query=self.last_query + 1)
        self.last_query, self._open_id = self.last_query + 1, name
        return name

    def close(self, end: End = "finished") -> None:
        """Write the closing entry if the ledger has begun, and close the file. Calling it again is harmless."""
        if self._descriptor is None:
            return
        try:
            if self._settings:
                self._add(Closed, end=end, queries=self.queries)
        finally:
            if self._witness:
                self._witness.close()
            os.close(self._descriptor)
            self._descriptor = self._settings = self._witness = None

    def _add(self, kind: type[AnyEntry], **values: Any) -> None:
        if self._descriptor is None or not self._settings:
            raise CrodoboError("Entries can be written only between `begin` and the end of the `with` block.")
        if "settings" in kind.model_fields:
            values["settings"] = self._settings
        try:
            entry = kind(sequence=self._sequence, time=now(), previous=self.head, **values)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise CrodoboError(f"A receipt can hold only numbers ({reason}). Nothing was written.") from None
        line = seal(entry, self._key.sign if self._key else None)
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                raise FileNotFoundError(2, "it was replaced by another file")
            append_durably(self._descriptor, line + b"\n")
        except OSError as error:
            raise CrodoboError(
                f"The ledger {self.path} is not writable ({error.strerror}), and no query is processed without it.",
                "Solve that, then start again: the stream continues.",
            ) from None
        self.head, self._sequence = line[-66:-2].decode(), self._sequence + 1

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            if not try_lock(self._descriptor):
                raise CrodoboError(f"Another process is writing to the ledger {self.path}.", "Wait for it to end.")
            self._check()
        except BaseException as error:
            state = "writable" if self._descriptor is None else "readable"
            self.close()
            if isinstance(error, OSError):
                problem = f"The ledger {self.path} is not {state} ({error.strerror})."
                raise BadData(problem, "Move it to another place.") from None
            raise

    def _check(self) -> None:
        """Verify all entries, and repair the last one if a crash tore it."""
        public = self._key.public if self._key else None
        with self.path.open("rb") as file:
            found = verify(file, make_signature_check(public) if public else None)
        if found.damage:
            self._refuse(found.damage[0])
        if found.header and found.header.public_key != public:
            self._refuse_key(found.header.public_key)
        if found.torn:
            self._repair(found)
        if found.last:
            self.head, self._sequence = found.last.hash, found.last.entry.sequence + 1
        self.id = found.header.ledger if found.header else None
        self.queries, self.last_query = found.queries, found.last_query

    def _repair(self, found: Verification) -> None:
        """Cut off a torn entry. A whole entry that only lacks its line end gets one, so no receipt is lost."""
        assert self._descriptor is not None
        if found.unended:
            append_durably(self._descriptor, b"\n")
            return
        remnant = found.torn.rstrip(b"\0")  # a power failure can leave zeros
        if not (remnant.startswith(ENTRY_START) or ENTRY_START.startswith(remnant)) or SEALED.search(remnant):
            self._refuse(f"Line {found.lines + 1} is not a torn entry.")
        os.ftruncate(self._descriptor, os.fstat(self._descriptor).st_size - len(found.torn))
        os.fsync(self._descriptor)
        self._cut = len(found.torn)

    def _refuse_key(self, stated: str | None) -> NoReturn:
        state = "is not signed" if stated is None else "is signed with another key" if self._key else "is signed"
        remedy = "Do not sign" if stated is None else "Use its signing key"
        raise CrodoboError(
            f"The ledger {self.path} {state}.",
            f"{remedy}, or move it to another place to begin a new one.",
            settings=("sign_key",),
        )

    def _refuse(self, reason: str) -> NoReturn:
        raise BadData(
            f"The ledger {self.path} is damaged and was not changed. {reason}",
            "Move it to another place to begin a new one. `crodobo audit ledger` lists all damage.",
        )


def digest_of(settings: dict[str, Any]) -> str:
    """The SHA-256 of settings as JSON, with sorted keys and without spaces.

    >>> digest_of({"seed": 0, "method": "crodobo"}) == digest_of({"method": "crodobo", "seed": 0})
    True
    """
    content = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()
