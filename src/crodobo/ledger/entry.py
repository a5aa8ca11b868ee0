"""The entries of a ledger, and how they are sealed so that any change is detected.

Each line of the file is one sealed entry: the entry's fields as JSON, in order and without spaces, then `signature` if
the ledger is signed, and last `hash`. The hash is the SHA-256 of the line up to the comma before it. The signature
covers the entry's fields alone. The next entry repeats the hash as `previous`.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SEAL = re.compile(rb'(\{.*?)(?:,"signature":"([0-9a-f]{128})")?,"hash":"([0-9a-f]{64})"\}', re.DOTALL)

Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
Identifier = Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
Timestamp = Annotated[str, Field(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00\z")]
Count = Annotated[int, Field(ge=0)]
Number = bool | int | Annotated[float, Field(allow_inf_nan=False)]
ScanNumbers = dict[Annotated[str, Field(pattern=r"\A[a-z_]{1,32}\z")], Number]


def now() -> str:
    """The current time as a `Timestamp`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class LedgerEntry(BaseModel):
    """What every entry has: its number in the ledger, the time (UTC), the hash of the entry before."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    sequence: Count
    time: Timestamp
    previous: Digest | None


class Header(LedgerEntry):
    """The first entry. `after` is the number of the last query before this ledger existed.

    `scan` is the result of the memory search for a test query, made before the first private one.
    """

    kind: Literal["header"] = "header"
    ledger: Identifier
    version: str
    settings: Digest
    public_key: Digest | None
    after: Count
    scan: ScanNumbers | None


class Receipt(LedgerEntry):
    """A query was burned: its number in the stream, its samples, and the bytes that were overwritten."""

    kind: Literal["query"] = "query"
    id: Identifier
    query: Count
    samples: Count
    settings: Digest
    wiped: Count
    scan: ScanNumbers | None


class Answered(LedgerEntry):
    """A query was answered and is still being learned. Its receipt, which will have this id, follows."""

    kind: Literal["answered"] = "answered"
    id: Identifier
    query: Count


class Resumed(LedgerEntry):
    """A process continues the ledger after that query. It removed `cut` bytes of a torn line.

    `scan` is the same as in a header.
    """

    kind: Literal["resumed"] = "resumed"
    version: str
    settings: Digest
    after: Count
    cut: Count
    scan: ScanNumbers | None


class Closed(LedgerEntry):
    """A process closed the ledger in order. `queries` is the number of receipts so far."""

    kind: Literal["closed"] = "closed"
    end: Literal["finished", "stopped", "failed"]
    queries: Count


AnyEntry = Header | Receipt | Answered | Resumed | Closed
_ENTRY: TypeAdapter[AnyEntry] = TypeAdapter(Annotated[AnyEntry, Field(discriminator="kind")])


class DamagedEntry(Exception):
    """A line that no ledger wrote. The text is the reason, as the second half of a sentence."""


@dataclass(frozen=True)
class SealedEntry:
    """An entry with its hash, and its signature if it has one. `signed` are the bytes that a signature covers."""

    entry: AnyEntry
    signed: bytes
    signature: str | None
    hash: str


def seal(entry: LedgerEntry, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """An entry as a line, without the line end."""
    body = entry.model_dump_json().encode()
    unhashed = body[:-1]
    if sign:
        unhashed += b',"signature":"' + sign(body).hex().encode() + b'"'
    return unhashed + b',"hash":"' + hashlib.sha256(unhashed).hexdigest().encode() + b'"}'


def unseal(line: bytes) -> SealedEntry:
    """Parse a line without its line end. Raises `DamagedEntry` if any byte of it was changed.

    >>> unseal(b'{"format":1}')
    Traceback (most recent call last):
    ...
    crodobo.ledger.entry.DamagedEntry: it does not end with a hash
    """
    parts = SEAL.fullmatch(line)
    if not parts:
        raise DamagedEntry("it does not end with a hash")
    start, signature, stated = parts[1], parts[2], parts[3].decode()
    if hashlib.sha256(line[: -len(b',"hash":""}') - 64]).hexdigest() != stated:
        raise DamagedEntry("its hash does not match its content")
    body = start + b"}"
    try:
        entry = _ENTRY.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise DamagedEntry(f"it is not a ledger entry ({place + ': ' if place else ''}{first['msg']})") from None
    if entry.model_dump_json().encode() != body:
        raise DamagedEntry("its fields are not written as a ledger writes them")
    return SealedEntry(entry, body, signature.decode() if signature else None, stated)
