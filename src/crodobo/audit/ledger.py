"""Audit a ledger: find entries that were edited, dropped, repeated, moved, inserted or cut short."""

from pathlib import Path

from crodobo.audit.ledger_owner import Named, named_ledgers
from crodobo.audit.report import Report
from crodobo.errors import BadData
from crodobo.ledger.signing import can_sign, make_signature_check
from crodobo.ledger.verify import Verification, verify
from crodobo.ledger.witness import Statement, ask

UNSIGNED = (
    "A new end: anyone who can write to the file can cut its end off and write it again, with valid hashes. Check "
    "signatures with a public key that you know, or compare the last hash with one that you kept elsewhere.",
    "A ledger cut back to an earlier closing line. Only a last hash that you kept elsewhere shows that.",
)
SIGNED = (
    "Entries rewritten with the private key, and a ledger cut back to an earlier closing line. Only a last hash that "
    "you kept elsewhere shows those.",
)
COMPARED = ("Changes made before you kept that hash.",)
UNCLOSED = (
    "It ends without a closing line: the process was killed, or lines were cut off at the end. Accept an unclosed "
    "ledger if you know that the process was killed."
)
NOT_NAMED = (
    "Whether it is the ledger of its run: no file beside it names a ledger. Give the id that you expect, and keep it "
    "elsewhere."
)
NAMED = "Files of the run that were changed together with it. Only an id that you kept elsewhere shows that."
UNSIGNED_WRITER = "Whether the process that answers is the writer: without a signature any process could answer."
MEMORY = "Memory, swap and disk: a receipt is the program's own statement that it overwrote a query."


def audit_ledger(
    path: Path,
    *,
    public_key: str | None = None,
    expect_head: str | None = None,
    expect_ledger: str | None = None,
    unclosed: bool = False,
) -> Report:
    """Verify a ledger.

    `public_key` must have signed the entries, `expect_head` must be the hash of the last one, and `expect_ledger` must
    be the ledger's id; all are hexadecimal digits. `unclosed` accepts a ledger without a closing entry, as after a
    kill.

    If a process is writing to it, the ledger must contain the entry that this process calls its last.
    """
    named = named_ledgers(path.parent)
    try:
        with path.open("rb") as file:
            header = verify([file.readline()]).header
            file.seek(0)
            key = public_key or (header.public_key if header and can_sign() else None)
            check = make_signature_check(key) if key else None
            stated = ask(header.ledger, check) if header else None  # first, because the writer goes on
            look_for = {stated.head if stated else None, *(each.head for each in named)} - {None}
            found = verify(file, check, {str(head) for head in look_for})
    except OSError as error:
        raise BadData(f"The ledger {path} is not readable ({error.strerror}).", "Check the path.") from None
    report = Report(found=found.damage + found.traces, noted=found.notes)
    report.checked += [
        f"{found.lines} lines of {path}: format, hash, number, and the hash of the line before.",
        f"{found.queries} receipts: {found.samples} samples, {found.wiped} bytes overwritten, {found.scans} scans.",
    ]
    _check_key(report, found, public_key, key)
    _check_owner(report, found, named, expect_ledger)
    written = _check_writer(report, found, stated)
    _check_end(report, found, expect_head, accept_unclosed=unclosed or written)
    report.unseen += [*(COMPARED if expect_head else SIGNED if public_key else UNSIGNED), MEMORY]
    if found.header:
        report.noted.append(f"The id of the ledger, to keep elsewhere: {found.header.ledger}")
    if found.head:
        report.noted.append(f"The last hash, to keep elsewhere: {found.head}")
    return report


def _check_owner(report: Report, found: Verification, named: list[Named], expected: str | None) -> None:
    """Whether it is the ledger that was expected, and the one that the run's other files name."""
    if not found.header:
        return
    if expected:
        report.checked.append(f"The id of the ledger against {expected}.")
        if found.header.ledger != expected:
            report.found.append("It is another ledger than the expected one.")
    for file, ledger, head in named:
        report.checked.append(f"The ledger that {file} beside it names.")
        if ledger != found.header.ledger:
            report.found.append(f"It is another ledger than {file} beside it names.")
        elif head and head not in found.seen:
            report.found.append(f"An entry that {file} beside it names is missing: lines were cut off or rewritten.")
    if not expected:
        report.unseen.append(NAMED if named else NOT_NAMED)


def _check_writer(report: Report, found: Verification, stated: Statement | None) -> bool:
    """Whether a process says that it is writing to this ledger, and the ledger has the entry that it calls its last."""
    if not stated:
        return False
    if stated.valid is False:
        report.found.append("A process says that it is writing to this ledger, but it does not have the signing key.")
    elif stated.head not in found.seen:
        problem = "The process that writes to this ledger names a last entry that is not in it"
        report.found.append(f"{problem}: lines were cut off or rewritten.")
    else:
        report.noted.append("A process is writing to it at the moment, and names an end that is in it.")
        if stated.valid is None:
            report.unseen.append(UNSIGNED_WRITER)
        return True
    return False


def _check_key(report: Report, found: Verification, given: str | None, used: str | None) -> None:
    stated = found.header.public_key if found.header else None
    if used:
        whose = "the given key" if given else "the key named in its header"
        report.checked.append(f"{found.signatures} signatures, with {whose}.")
    if given and found.header and stated != given:
        report.found.append("The header names another public key." if stated else "The ledger is not signed.")
    elif stated and not given and used:
        report.unseen.append("Whose key the header names: check with the public key that you know.")
    elif stated and not given:
        report.unseen.append('Whether the signatures are valid: that needs pip install "crodobo[sign]".')


def _check_end(report: Report, found: Verification, expected: str | None, *, accept_unclosed: bool) -> None:
    if found.unended:
        report.found.append(f"Line {found.lines} has no line end: it was cut short, by a crash or by hand.")
    elif found.torn:
        torn = f"Line {found.lines + 1} is cut short, by a crash or by hand."
        report.found.append(f"{torn} The program removes it at its next start.")
    elif not found.lines:
        report.found.append("The ledger is empty.")
    if expected:
        report.checked.append(f"The last hash against {expected}.")
        if found.head != expected:
            report.found.append("The last hash is not the expected one: entries were added, cut off or rewritten.")
    elif found.lines and not found.closed:
        if accept_unclosed:
            report.noted.append("It ends without a closing line.")
        else:
            report.found.append(UNCLOSED)
