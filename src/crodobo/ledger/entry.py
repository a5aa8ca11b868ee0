"""The lines of a ledger: what each kind says, and how a line is sealed so that a change of it shows.

A line is JSON of one form: an entry's fields in their order without spaces, then, if the ledger is signed, `signature`,
and last `hash`. The hash is the SHA-256 of the line up to the comma before it; the signature is that of the entry
alone. The next line repeats the hash as `previous`.
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
Moment = Annotated[str, Field(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00\z")]
Count = Annotated[int, Field(ge=0)]
Number = bool | int | Annotated[float, Field(allow_inf_nan=False)]
Scan = dict[Annotated[str, Field(pattern=r"\A[a-z_]{1,32}\z")], Number]


def now() -> str:
    """The time, as a `Moment`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Entry(BaseModel):
    """What every line has: its number in the ledger, the time (UTC), the hash of the line before."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    sequence: Count
    time: Moment
    previous: Digest | None


class Header(_Entry):
    """The first line. `after` is the number of the last query that was met before there was this ledger.

    `scan` is what a search of the process's memory for a test query came to, before the first private one.
    """

    kind: Literal["header"] = "header"
    ledger: Identifier
    version: str
    settings: Digest
    public_key: Digest | None
    after: Count
    scan: Scan | None


class Receipt(_Entry):
    """A query was burned: which in its stream, how many samples it had, how many bytes were overwritten."""

    kind: Literal["query"] = "query"
    id: Identifier
    query: Count
    samples: Count
    settings: Digest
    wiped: Count
    scan: Scan | None


class Resumed(_Entry):
    """A process goes on with the ledger, after that query; `cut` bytes of a torn line had to be removed.

    `scan` is as in a header.
    """

    kind: Literal["resumed"] = "resumed"
    version: str
    settings: Digest
    after: Count
    cut: Count
    scan: Scan | None


class Closed(_Entry):
    """A process has let the ledger go in order; the ledger has so many receipts by now."""

    kind: Literal["closed"] = "closed"
    end: Literal["finished", "stopped", "failed"]
    queries: Count


Entry = Annotated[Header | Receipt | Resumed | Closed, Field(discriminator="kind")]
_ENTRY: TypeAdapter[Header | Receipt | Resumed | Closed] = TypeAdapter(Entry)


class BadLine(Exception):
    """A line that is not as it was written; the text is the reason, as the second half of a sentence."""


@dataclass(frozen=True)
class Line:
    """A sealed entry: what it says, the bytes that a signature is of, the signature if there is one, the hash."""

    entry: Header | Receipt | Resumed | Closed
    signed: bytes
    signature: str | None
    hash: str


def seal(entry: BaseModel, sign: Callable[[bytes], bytes] | None = None) -> bytes:
    """An entry as a line, without its end of line.

    >>> entry = Closed(sequence=1, time="2030-01-02T03:04:05.678+00:00", previous="0" * 64, end="finished", queries=0)
    >>> read(seal(entry)).entry == entry
    True
    """
    body = entry.model_dump_json().encode()
    open_end = body[:-1]
    if sign:
        open_end += b',"signature":"' + sign(body).hex().encode() + b'"'
    return open_end + b',"hash":"' + hashlib.sha256(open_end).hexdigest().encode() + b'"}'


def read(line: bytes) -> Line:
    """What a line without its end of line says; raises `BadLine` if a byte of it was changed.

    >>> read(b'{"format":1}')
    Traceback (most recent call last):
    ...
    crodobo.ledger.entry.BadLine: it does not end with a hash
    """
    parts = SEAL.fullmatch(line)
    if not parts:
        raise BadLine("it does not end with a hash")
    start, signature, stated = parts[1], parts[2], parts[3].decode()
    if hashlib.sha256(line[: -len(b',"hash":""}') - 64]).hexdigest() != stated:
        raise BadLine("its hash is of other content")
    body = start + b"}"
    try:
        entry = _ENTRY.validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadLine(f"it is no line of this format ({place + ': ' if place else ''}{first['msg']})") from None
    if entry.model_dump_json().encode() != body:
        raise BadLine("it is not written as a ledger writes it")
    return Line(entry, body, signature.decode() if signature else None, stated)
