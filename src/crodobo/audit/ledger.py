"""Is a ledger as it was written? Finds lines that were edited, dropped, repeated, moved, inserted or cut short."""

import fcntl
from pathlib import Path

from crodobo.audit.report import Report
from crodobo.errors import BadData
from crodobo.ledger.signing import can_sign, make_verifier
from crodobo.ledger.verify import Examination, examine

REBUILT = (
    "an end that was cut off and written anew, hashes and all: that shows only in signatures (--public-key) or against "
    "a last hash that was kept elsewhere (--expect-head); an end that was cut off back to an earlier closing line: "
    "that shows only against such a hash"
)
SIGNED = (
    "lines that whoever has the private key wrote anew, and lines cut off at the end back to an earlier closing line: "
    "those show only against a last hash that was kept elsewhere (--expect-head)"
)
KEPT = "what was changed before that hash was kept"
MEMORY = "memory, swap and disk: a receipt is the program's own word that it has overwritten a query"


def audit_ledger(
    path: Path, *, public_key: str | None = None, expect_head: str | None = None, unclosed: bool = False
) -> Report:
    """Look a ledger over.

    Parameters
    ----------
    path
        The ledger.
    public_key
        Whose signatures its lines must have, 64 hexadecimal digits.
    expect_head
        A hash that was kept elsewhere, which the last line must have.
    unclosed
        Accept that the last line is no closing one, as after a kill.
    """
    try:
        with path.open("rb") as file:
            stated = _stated_key(path)
            checker = public_key or (stated if can_sign() else None)
            found = examine(file, make_verifier(checker) if checker else None)
            busy = _is_locked(file.fileno())
    except OSError as error:
        raise BadData(f"the ledger {path} cannot be read ({error.strerror}); check its path") from None
    report = Report(found=[finding.text for finding in found.findings], noted=found.notes)
    report.checked += [
        f"{found.lines} lines of {path}: form, hash, number, the hash of the line before",
        f"{found.queries} receipts: {found.samples} samples, {found.wiped} bytes overwritten, {found.scans} scans",
    ]
    _check_key(report, found, public_key, checker)
    _check_end(report, found, expect_head, accepted=unclosed or busy)
    if busy:
        report.noted.append("a process is writing to it at the moment")
    report.unseen.append(KEPT if expect_head else SIGNED if public_key else REBUILT)
    report.unseen.append(MEMORY)
    if found.head:
        report.noted.append(f"its last hash, to keep elsewhere: {found.head}")
    return report


def _check_key(report: Report, found: Examination, given: str | None, checker: str | None) -> None:
    stated = found.header.public_key if found.header else None
    if checker:
        whose = "the given key" if given else "the key that its header names"
        report.checked.append(f"{found.signatures} signatures, with {whose}")
    if given and found.header and stated != given:
        report.found.append("its header names another public key" if stated else "it is not signed")
    elif stated and not given:
        report.unseen.append(
            "whose key it is that the header names: give the one that you know with --public-key"
            if checker
            else 'whether its signatures are right: that needs pip install "crodobo[sign]"'
        )


def _check_end(report: Report, found: Examination, expected: str | None, *, accepted: bool) -> None:
    if found.unended:
        report.found.append(f"line {found.lines} has no end of line: cut short, by a crash or by hand")
    elif found.torn:
        report.found.append(
            f"line {found.lines + 1} is cut short, by a crash or by hand; the next start of the program cuts it off"
        )
    if not found.lines and not found.torn:
        report.found.append("it is empty")
    if expected:
        report.checked.append(f"the last hash against {expected}")
        if found.head != expected:
            report.found.append("its last hash is another than was expected: lines were added, cut off or written anew")
    elif found.lines and not found.closed:
        text = "it ends without a closing line"
        if accepted:
            report.noted.append(text)
        else:
            report.found.append(
                f"{text}: the process was killed, or lines were cut off at the end. If you know of the kill, "
                "--unclosed accepts it"
            )


def _stated_key(path: Path) -> str | None:
    """The public key that a ledger itself names."""
    with path.open("rb") as file:
        header = examine([file.readline()]).header
    return header.public_key if header else None


def _is_locked(descriptor: int) -> bool:
    """Whether a process holds the ledger to write to it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
