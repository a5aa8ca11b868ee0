"""Verify a ledger: does each entry follow from the one before, and is any edited, missing or out of order?"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from crodobo.ledger.entry import Answered, AnyEntry, Closed, DamagedEntry, Header, Receipt, Resumed, SealedEntry, unseal

SignatureCheck = Callable[[bytes, str], bool]


@dataclass
class Verification:
    """What a ledger contains, and what is wrong with it.

    `damage` and `notes` are sentences about lines: what is wrong, and what a reader may wonder about. `traces` reports
    the scans that found something; the ledger itself is intact. `torn` are the bytes after the last line end. If they
    are a whole entry that only lacks its line end, it is counted, and `unended` is true. `seen` are the hashes that
    were looked for and found.
    """

    lines: int = 0
    queries: int = 0
    samples: int = 0
    wiped: int = 0
    scans: int = 0
    signatures: int = 0
    last_query: int = 0
    settings: str | None = None
    header: Header | None = None
    last: SealedEntry | None = None
    torn: bytes = b""
    unended: bool = False
    seen: set[str] = field(default_factory=set)
    damage: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        """The hash of the last entry."""
        return self.last.hash if self.last else None

    @property
    def closed(self) -> bool:
        """Whether the last entry is a closing one."""
        return self.last is not None and isinstance(self.last.entry, Closed)


def verify(
    lines: Iterable[bytes], check_signature: SignatureCheck | None = None, look_for: Collection[str] = ()
) -> Verification:
    """Verify the lines of a ledger. Each includes its line end, except perhaps the last.

    With `check_signature`, signatures are verified too. `look_for` are hashes that entries should have.
    """
    return _Verifier(check_signature, look_for).run(lines)


class _Verifier:
    def __init__(self, check_signature: SignatureCheck | None, look_for: Collection[str]) -> None:
        self._is_valid_signature = check_signature
        self._look_for = look_for
        self._result = Verification()
        self._first_line: dict[int, int] = {}  # sequence number: the first line that has it
        self._breaks: list[tuple[int, int, int | None]] = []  # line, its number, the number before it if known
        self._previous: SealedEntry | None = None  # None if the line before could not be parsed
        self._expected = 0  # the sequence number that should come next
        self._open: Answered | None = None  # a query that was answered and has no receipt yet

    def run(self, lines: Iterable[bytes]) -> Verification:
        result = self._result
        for line in lines:
            result.torn = b"" if line.endswith(b"\n") else line
            try:
                sealed = unseal(line.removesuffix(b"\n"))
            except DamagedEntry as reason:
                if result.torn:
                    break
                result.lines += 1
                self._report(f"was edited: {reason}")
                self._previous, self._expected = None, self._expected + 1
            else:
                result.lines += 1
                result.unended = bool(result.torn)
                if sealed.hash in self._look_for:
                    result.seen.add(sealed.hash)
                self._add(sealed)
        if self._open:
            self._note(f"query {self._open.query} was answered and has no receipt yet")
        self._explain_breaks()
        return result

    def _add(self, sealed: SealedEntry) -> None:
        result, line, entry, before = self._result, self._result.lines, sealed.entry, self._previous
        follows = entry.sequence == self._expected
        if before or line == 1:  # otherwise the line before is damaged, and its hash is not known
            follows = follows and entry.previous == (before.hash if before else None)
        if line == 1 and not (follows and isinstance(entry, Header)):
            self._report(f"is not a header: the lines before number {entry.sequence} are missing")
        elif not follows:
            self._breaks.append((line, entry.sequence, before.entry.sequence if before else None))
        self._check_signature(sealed)
        self._check_content(entry, follows)
        self._first_line.setdefault(entry.sequence, line)
        if result.last and entry.time < result.last.entry.time:
            self._note("its time is earlier than that of the line before: the clock was set back")
        self._previous = result.last = sealed
        self._expected = entry.sequence + 1

    def _check_signature(self, sealed: SealedEntry) -> None:
        header = sealed.entry if isinstance(sealed.entry, Header) else self._result.header
        if header and header.public_key and not sealed.signature:
            self._report("has no signature, but the ledger is signed")
        elif header and not header.public_key and sealed.signature:
            self._report("has a signature, but the ledger is not signed")
        elif sealed.signature and self._is_valid_signature:
            if self._is_valid_signature(sealed.signed, sealed.signature):
                self._result.signatures += 1
            else:
                self._report("has a signature that was not made with this key")

    def _check_content(self, entry: AnyEntry, follows: bool) -> None:
        """Compare an entry with what the entries before it lead to."""
        result = self._result
        after_closing = self._previous is not None and isinstance(self._previous.entry, Closed)
        if not isinstance(entry, Closed | Answered) and entry.scan:
            result.scans += 1
            if traces := entry.scan.get("found"):
                when = f"after query {entry.query}" if isinstance(entry, Receipt) else "before the first query"
                trace = f"reports traces of a query in memory, found {when} ({traces})"
                result.traces.append(f"Line {result.lines} {trace}.")
        if isinstance(entry, Header):
            if result.lines > 1 and follows:
                self._report("is a second header")
            result.header, result.settings, result.last_query = entry, entry.settings, entry.after
            return
        if follows and after_closing and not isinstance(entry, Resumed):
            self._report("comes after a closing line, but the ledger was not resumed")
        if self._open and not isinstance(entry, Receipt):
            self._note(f"query {self._open.query} was answered and has no receipt: the process ended in between")
            self._open = None
        if isinstance(entry, Resumed):
            self._explain_resumption(entry, killed=not after_closing)
            result.settings, result.last_query = entry.settings, entry.after
        elif isinstance(entry, Receipt):
            known = follows and self._previous is not None and result.settings is not None
            number = result.last_query + (self._open is None)
            if known and (entry.query, entry.settings) != (number, result.settings):
                self._report("has another query number, or other settings, than the lines before lead to")
            elif known and self._open and entry.id != self._open.id:
                self._report(f"has another id than the answer to query {entry.query} named")
            self._open = None
            result.last_query, result.settings = entry.query, entry.settings
            result.queries += 1
            result.samples += entry.samples
            result.wiped += entry.wiped
        elif isinstance(entry, Answered):
            if follows and self._previous is not None and entry.query != result.last_query + 1:
                self._report("has another query number than the lines before lead to")
            result.last_query, self._open = entry.query, entry
        elif follows and not result.damage and not self._breaks and entry.queries != result.queries:
            self._report(f"closes a ledger of {entry.queries} queries, but there are {result.queries}")

    def _explain_resumption(self, entry: Resumed, killed: bool) -> None:
        last = self._result.last_query
        if killed and self._previous:
            self._note("the process before was killed: it left no closing line")
        if entry.cut:
            self._note(f"{entry.cut} bytes of a torn line, left by a crash, were cut off")
        if entry.after == 0 and last:
            self._note("the stream restarts with query 1")
        elif entry.after < last:
            were = _queries_were(entry.after, last)
            self._note(f"it continues from the checkpoint after query {entry.after}; {were} repeated and erased again")
        elif entry.after == last + 1:
            self._note(f"query {entry.after} has predictions and no receipt: the process ended in between")
        elif entry.after > last:
            self._note(f"{_queries_were(last, entry.after)} processed without this ledger")

    def _explain_breaks(self) -> None:
        for line, number, before in self._breaks:
            first = self._first_line[number]
            if first < line:
                self._report(f"has the number {number}, like line {first}: it was repeated or inserted", line)
            elif before is None:
                self._report(f"has the number {number}: lines before it are missing or out of order", line)
            elif number == before + 1:
                self._report(f"does not follow from line {line - 1}: one of the two was replaced or inserted", line)
            else:
                between = sum(before < other < number for other in self._first_line)
                missing = between < number - before - 1
                reason = "lines between them are missing" if missing else "they are out of order"
                self._report(f"has the number {number} after {before}: {reason}", line)

    def _report(self, damage: str, line: int | None = None) -> None:
        self._result.damage.append(f"Line {line or self._result.lines} {damage}.")

    def _note(self, text: str) -> None:
        self._result.notes.append(f"Line {self._result.lines}: {text}.")


def _queries_were(after: int, last: int) -> str:
    """The queries after one up to another, as the subject of a sentence."""
    return f"query {last} was" if last == after + 1 else f"queries {after + 1} to {last} were"
