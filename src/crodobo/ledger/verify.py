"""The chain that a ledger's lines are: whether each follows from the one before, and what does not fit."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from crodobo.ledger.entry import BadLine, Closed, Header, Line, Receipt, Resumed, read

Verify = Callable[[bytes, str], bool]


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be. Damage is of the ledger itself; else it is what the ledger reports."""

    text: str
    damage: bool = True


@dataclass
class Examination:
    """What a ledger's lines say, and what is wrong with them.

    `torn` is what follows the last end of line, `end` where that is. If it is a whole line, which only lacks its end,
    it is counted, and `unended` is true. `notes` are what a reader may wonder about and what explains it.
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
    last: Line | None = None
    torn: bytes = b""
    end: int = 0
    unended: bool = False
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def head(self) -> str | None:
        """The hash of the last line."""
        return self.last.hash if self.last else None

    @property
    def closed(self) -> bool:
        """Whether the last line is a closing one."""
        return self.last is not None and isinstance(self.last.entry, Closed)

    @property
    def damage(self) -> list[str]:
        """What is wrong with the ledger itself."""
        return [finding.text for finding in self.findings if finding.damage]


def examine(pieces: Iterable[bytes], verify: Verify | None = None) -> Examination:
    """Go over a ledger, a piece for each line with its end, the last one perhaps without.

    With `verify`, signatures are checked too.

    >>> from crodobo.ledger.entry import seal
    >>> last = Closed(sequence=7, time="2030-01-02T03:04:05.678+00:00", previous="0" * 64, end="finished", queries=2)
    >>> examine([seal(last) + b"\\n"]).damage
    ['line 1 is no header: the lines before number 7 are missing']
    """
    return _Examiner(verify).go_over(pieces)


class _Examiner:
    def __init__(self, verify: Verify | None) -> None:
        self._verify = verify
        self._found = Examination()
        self._places: dict[int, int] = {}  # where each number of a line stands first
        self._breaks: list[tuple[int, int, int | None]] = []  # place, number, the number before if it is known
        self._before: Line | None = None  # None: the line before could not be read
        self._expected = 0  # the number that the next line should have
        self._time = ""

    def go_over(self, pieces: Iterable[bytes]) -> Examination:
        found = self._found
        for piece in pieces:
            whole = piece.endswith(b"\n")
            try:
                line = read(piece.removesuffix(b"\n"))
            except BadLine as reason:
                if not whole:
                    found.torn = piece
                    break
                found.lines += 1
                self._find(f"line {found.lines} was edited: {reason}")
                self._before, self._expected = None, self._expected + 1
            else:
                found.lines += 1
                found.torn, found.unended = (b"", False) if whole else (piece, True)
                self._add(line)
            found.end += len(piece) if whole else 0
        self._explain_breaks()
        return found

    def _add(self, line: Line) -> None:
        found, place, entry = self._found, self._found.lines, line.entry
        first = place == 1
        follows = entry.sequence == self._expected and (
            entry.previous == (self._before.hash if self._before else None) or (not first and self._before is None)
        )
        if first and (not follows or not isinstance(entry, Header)):
            self._find(f"line 1 is no header: the lines before number {entry.sequence} are missing")
        elif not follows:
            self._breaks.append((place, entry.sequence, self._before.entry.sequence if self._before else None))
        self._check_signature(line)
        self._check_meaning(line, follows)
        self._places.setdefault(entry.sequence, place)
        self._before, self._expected, found.last = line, entry.sequence + 1, line
        if entry.time < self._time:
            found.notes.append(f"line {place} is of an earlier time than the one before: the clock was set back")
        self._time = entry.time

    def _check_signature(self, line: Line) -> None:
        found, place = self._found, self._found.lines
        header = line.entry if isinstance(line.entry, Header) else found.header
        signed = header is not None and header.public_key is not None
        if signed and not line.signature:
            self._find(f"line {place} has no signature, though the ledger is a signed one")
        elif header and not signed and line.signature:
            self._find(f"line {place} has a signature, though the ledger is none with signatures")
        elif line.signature and self._verify:
            if self._verify(line.signed, line.signature):
                found.signatures += 1
            else:
                self._find(f"line {place} has a signature that is not of this key")

    def _check_meaning(self, line: Line, follows: bool) -> None:
        """What a line says against what the lines before it said."""
        found, place, entry = self._found, self._found.lines, line.entry
        after_closing = self._before is not None and isinstance(self._before.entry, Closed)
        if not isinstance(entry, Closed) and entry.scan:
            self._count_scan(entry)
        if isinstance(entry, Header):
            if place > 1 and follows:
                self._find(f"line {place} is a second header")
            found.header, found.settings, found.last_query = entry, entry.settings, entry.after
            return
        if follows and after_closing and not isinstance(entry, Resumed):
            self._find(f"line {place} comes after a closing line, and the ledger was not resumed")
        if isinstance(entry, Resumed):
            self._explain_resumption(entry, killed=not after_closing)
            found.settings, found.last_query = entry.settings, entry.after
        elif isinstance(entry, Receipt):
            known = follows and self._before is not None and found.settings is not None
            if known and (entry.query, entry.settings) != (found.last_query + 1, found.settings):
                self._find(f"line {place} is of another query, or of other settings, than the lines before lead to")
            found.last_query, found.settings = entry.query, entry.settings
            found.queries += 1
            found.samples += entry.samples
            found.wiped += entry.wiped
        elif follows and not found.damage and not self._breaks and entry.queries != found.queries:
            self._find(f"line {place} closes a ledger of {entry.queries} queries, and there are {found.queries}")

    def _count_scan(self, entry: Header | Receipt | Resumed) -> None:
        assert entry.scan
        self._found.scans += 1
        if traces := entry.scan.get("found"):
            when = f"after query {entry.query}" if isinstance(entry, Receipt) else "before the first query"
            text = f"line {self._found.lines}: {when} a scan found traces of a query in memory ({traces})"
            self._found.findings.append(Finding(text, damage=False))

    def _explain_resumption(self, entry: Resumed, killed: bool) -> None:
        found, place, last = self._found, self._found.lines, self._found.last_query
        if killed and self._before:
            found.notes.append(f"line {place}: the process before was killed: it has left no closing line")
        if entry.cut:
            found.notes.append(f"line {place}: {entry.cut} bytes of a line that a crash had torn were cut off")
        if entry.after == 0 and last:
            found.notes.append(f"line {place}: the stream begins anew with query 1")
        elif entry.after < last:
            again = _from_to(entry.after, last)
            found.notes.append(
                f"line {place}: it goes on after query {entry.after}, where the checkpoint was; {again} met, and "
                "erased, once more"
            )
        elif entry.after == last + 1:
            found.notes.append(
                f"line {place}: query {entry.after} has predictions and no receipt: the process ended between the two"
            )
        elif entry.after > last:
            found.notes.append(f"line {place}: {_from_to(last, entry.after)} met without this ledger")

    def _explain_breaks(self) -> None:
        for place, number, before in self._breaks:
            first = self._places[number]
            if first < place:
                self._find(f"line {place} has the number {number}, as line {first} has: repeated or inserted")
            elif before is None:
                self._find(f"line {place} has the number {number}: lines before it are missing, or out of order")
            elif number > before + 1:
                there = sum(before < other < number for other in self._places)
                if there < number - before - 1:
                    self._find(f"line {place} has the number {number} after {before}: lines between them are missing")
                else:
                    self._find(f"line {place} has the number {number} after {before}: out of order")
            elif number < before + 1:
                self._find(f"line {place} has the number {number} after {before}: out of order")
            else:
                self._find(
                    f"line {place} does not follow from line {place - 1}: one of the two was replaced or inserted"
                )

    def _find(self, text: str) -> None:
        self._found.findings.append(Finding(text))


def _from_to(after: int, last: int) -> str:
    """Queries after one up to another, as the subject of a sentence.

    >>> _from_to(3, 4), _from_to(3, 6)
    ('query 4 was', 'queries 4 to 6 were')
    """
    return f"query {last} was" if last == after + 1 else f"queries {after + 1} to {last} were"
