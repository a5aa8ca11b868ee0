"""The ledger: a receipt for each query that was burned, in a file that is only ever added to.

It holds numbers, times, random names and hashes of itself; nothing of a sample, nothing made from one, and no file's
name. Each line has the hash of the line before, so that a change of any but the last shows in the next.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import ValidationError

from crodobo import __version__
from crodobo.errors import BadData, CrodoboError, Interrupted
from crodobo.ledger.entry import Closed, Header, Receipt, Resumed, now, seal
from crodobo.ledger.signing import SigningKey, make_verifier
from crodobo.ledger.verify import Examination, examine
from crodobo.storage.files import append_durably, sync_folder

NAME = "ledger.jsonl"
START = b'{"format":'
WHOLE = re.compile(rb',"hash":"[0-9a-f]{64}"\}')
End = Literal["finished", "stopped", "failed"]


class Ledger:
    """A ledger's one writer. Leaving its `with` block writes the closing line.

    A ledger that is there already is looked over first. A last line that a crash has torn is cut off; anything else
    that is not as it was written is refused, and the file stays as it is.

    Parameters
    ----------
    path
        The file. It is made by `begin`.
    key
        Signs each line.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Ledger(Path(folder.name) / "ledger.jsonl") as ledger:
    ...     ledger.begin({"seed": 0})
    ...     receipt = ledger.burned(samples=64, wiped=65536)
    >>> [json.loads(line)["kind"] for line in ledger.path.read_text().splitlines()]
    ['header', 'query', 'closed']
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, key: SigningKey | None = None) -> None:
        self.path = path
        self.head: str | None = None  # the last line's hash
        self.queries = 0  # receipts
        self.last_query = 0  # the number of the last one's query
        self._key = key
        self._descriptor: int | None = None
        self._begun = False
        self._sequence = self._cut = 0
        self._settings = ""
        if os.path.lexists(path):
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end: End = "finished" if kind is None else "stopped" if issubclass(kind, Interrupted) else "failed"
        if kind is None:
            self.close(end)
        else:
            with contextlib.suppress(CrodoboError):  # the first error is the one to tell
                self.close(end)

    def begin(self, settings: dict[str, Any], after: int = 0, scan: Mapping[str, float] | None = None) -> None:
        """Write the header, or that the ledger is resumed; `after` is the number of the query before the next one.

        `scan` is what a search for a test query came to, in numbers alone.
        """
        if self._descriptor is None:
            self._open()
        self._settings, self.last_query, self._begun = digest_of(settings), after, True
        searched = None if scan is None else dict(scan)
        if self.head is None:
            public = self._key.public if self._key else None
            name = secrets.token_hex(16)
            self._add(Header, ledger=name, version=__version__, public_key=public, after=after, scan=searched)
            with contextlib.suppress(OSError):  # a disk that cannot
                sync_folder(self.path.parent)
        else:
            self._add(Resumed, version=__version__, after=after, cut=self._cut, scan=searched)

    def burned(self, *, samples: int, wiped: int, scan: Mapping[str, float] | None = None) -> str:
        """Write the receipt of the next query, and give its id; on disk when this returns.

        `scan` is what a search for its traces came to, in numbers alone; `found` is how many there were.
        """
        number, name = self.last_query + 1, secrets.token_hex(16)
        self._add(
            Receipt,
            id=name,
            query=number,
            samples=samples,
            wiped=wiped,
            scan=None if scan is None else dict(scan),
        )
        self.last_query = number
        self.queries += 1
        return name

    def close(self, end: End = "finished") -> None:
        """Write the closing line, if the ledger has begun, and let the file go. Calling it again is harmless."""
        if self._descriptor is None:
            return
        try:
            if self._begun:
                self._add(Closed, end=end, queries=self.queries)
        finally:
            os.close(self._descriptor)
            self._descriptor, self._begun = None, False

    def _add(self, kind: type[Header | Receipt | Resumed | Closed], **values: Any) -> None:
        if self._descriptor is None or not self._begun:
            raise CrodoboError("a ledger is written to between `begin` and the end of its `with` block")
        if "settings" in kind.model_fields:
            values["settings"] = self._settings
        try:
            entry = kind(sequence=self._sequence, time=now(), previous=self.head, **values)
        except ValidationError as error:
            raise CrodoboError(
                f"a receipt holds numbers alone ({error.errors()[0]['msg']}); nothing was written"
            ) from None
        line = seal(entry, self._key.sign if self._key else None)
        try:
            if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
                raise FileNotFoundError(2, "it was replaced by another file")
            append_durably(self._descriptor, line + b"\n")
        except OSError as error:
            raise CrodoboError(
                f"the ledger {self.path} cannot be written to ({error.strerror}), and no query is met without one; put "
                "that right, then the same command goes on"
            ) from None
        self.head, self._sequence = line[-66:-2].decode(), self._sequence + 1

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise BadData(f"the ledger {self.path} cannot be written to ({error.strerror}); move it away") from None
        try:
            self._take_for_oneself()
            self._look_over()
        except BaseException as error:
            os.close(self._descriptor)
            self._descriptor = None
            if isinstance(error, OSError):
                raise BadData(f"the ledger {self.path} cannot be read ({error.strerror}); move it away") from None
            raise

    def _take_for_oneself(self) -> None:
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CrodoboError(f"another process is writing to the ledger {self.path}; wait for it") from None
        except OSError:
            pass  # a disk without locks

    def _look_over(self) -> None:
        """See that all lines are as they were written, and mend what a crash has left of the last one."""
        with self.path.open("rb") as file:
            found = examine(file, make_verifier(self._key.public) if self._key else None)
        if found.damage:
            self._refuse(found.damage[0])
        self._check_key(found)
        if found.torn:
            self._mend(found)
        if found.last:
            self.head, self._sequence = found.last.hash, found.last.entry.sequence + 1
        self.queries, self.last_query = found.queries, found.last_query

    def _mend(self, found: Examination) -> None:
        """A torn line is cut off, and a whole one that only lacks its end gets it: no receipt is lost."""
        assert self._descriptor is not None
        if found.unended:
            append_durably(self._descriptor, b"\n")
            return
        remnant = found.torn.rstrip(b"\0")  # zeros: what a disk without power may leave
        if not (remnant.startswith(START) or START.startswith(remnant)) or WHOLE.search(remnant):
            self._refuse(f"line {found.lines + 1} is no torn line")
        os.ftruncate(self._descriptor, found.end)
        os.fsync(self._descriptor)
        self._cut = len(found.torn)

    def _check_key(self, found: Examination) -> None:
        if not found.header:
            return
        given, known = self._key.public if self._key else None, found.header.public_key
        if given != known:
            wrong = "is not signed" if known is None else "is signed with another key" if given else "is signed"
            way = "leave --sign-key out" if known is None else "give its --sign-key"
            raise CrodoboError(f"the ledger {self.path} {wrong}; {way}, or move it away to begin a new one")

    def _refuse(self, what: str) -> None:
        raise BadData(
            f"the ledger {self.path} is damaged ({what}); crodobo audit ledger says more. It is left as it is: move it "
            "away to begin a new one"
        )


def digest_of(settings: dict[str, Any]) -> str:
    """The SHA-256 of settings as JSON, its keys sorted and without spaces.

    >>> digest_of({"seed": 0, "method": "crodobo"}) == digest_of({"method": "crodobo", "seed": 0})
    True
    """
    content = json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()
