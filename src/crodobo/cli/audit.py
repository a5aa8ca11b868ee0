"""`crodobo audit`: check the files and the memory of runs. `membership` measures and does not judge."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crodobo.cli.membership import membership
from crodobo.cli.options import command_group
from crodobo.config import Fit
from crodobo.errors import BadSettings

if TYPE_CHECKING:
    from crodobo.audit.report import Report

audit = command_group(
    help="Check the files and the memory of runs. The status is 0 if all is sound, 1 if something is found.",
    no_args_is_help=True,
)
audit.command()(membership)

SIZE: dict[str, Any] = {"min": 8, "max": 1024, "metavar": "PIXELS"}
PATTERN = typer.Option(metavar="FILE", help="An image to look for, or a folder of them; may be repeated.")
Fits = Annotated[
    Fit | None, typer.Option("--fit", help="How the run makes images square.  [default: search for all ways]")
]


@audit.command()
def ledger(
    file: Annotated[Path, typer.Argument(help="The ledger, ledger.jsonl.")],
    public_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Key that must have signed it.")] = None,
    expect_head: Annotated[str | None, typer.Option(metavar="HASH", help="Hash that the last line must have.")] = None,
    expect_ledger: Annotated[str | None, typer.Option(metavar="ID", help="Id that the ledger must have.")] = None,
    unclosed: Annotated[bool, typer.Option("--unclosed", help="Accept a ledger that a kill left open.")] = False,
) -> None:
    """Find lines of a ledger that were edited, dropped, moved, inserted or cut short, and say which."""
    from crodobo.audit.ledger import UNCLOSED, audit_ledger
    from crodobo.ledger.signing import load_public_key

    expect_head = _hexadecimal(expect_head, "a hash", 64, "expect_head")
    expect_ledger = _hexadecimal(expect_ledger, "an id", 32, "expect_ledger")
    key = load_public_key(public_key) if public_key else None
    report = audit_ledger(file, public_key=key, expect_head=expect_head, expect_ledger=expect_ledger, unclosed=unclosed)
    report.found = [f"{each} (see --unclosed)" if each == UNCLOSED else each for each in report.found]
    _tell(report)


@audit.command()
def disk(
    folder: Annotated[Path, typer.Argument(help="Folder with results, state, cache or temporary files of a run.")],
    pattern: Annotated[list[Path], PATTERN],
    image_size: Annotated[
        list[int] | None, typer.Option(**SIZE, help="Image size of the run; may be repeated; if not set, its models'.")
    ] = None,
    fit: Fits = None,
) -> None:
    """Search all files of a folder for bytes and pixels of images that must not be there."""
    from crodobo.audit.disk import audit_disk

    _tell(audit_disk(folder, pattern, sizes=image_size, fit=fit))


@audit.command()
def memory(
    process: Annotated[int | None, typer.Argument(metavar="PID", help="The process to search.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Start processes that burn test queries, and search those instead.")
    ] = False,
    pattern: Annotated[list[Path] | None, PATTERN] = None,
    content: Annotated[
        list[str] | None, typer.Option("--bytes", metavar="HEX", help="Bytes to look for; may be repeated.")
    ] = None,
    image_size: Annotated[list[int] | None, typer.Option(**SIZE, help="Image size; may be repeated.")] = None,
    fit: Fits = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the process while it is searched.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Self-test: all networks with 1, 2 and 4 learners (about 20 minutes).")
    ] = False,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Self-test: test queries before a search.  [default: 10, full 100]")
    ] = None,
) -> None:
    """Search all memory of a running process for images, or test whether burning leaves any on this machine."""
    if self_test == (process is not None):
        raise BadSettings("There must be either a process or a self-test.", "Give a PID or --self-test.")
    if self_test:
        from crodobo.audit.selftest import cases
        from crodobo.audit.selftest import self_test as test

        _tell(test(cases(queries or (100 if full else 10), full=full), lambda text: print(text, file=sys.stderr)))
        return
    from crodobo.audit.memory import audit_memory

    try:
        contents = [bytes.fromhex(text) for text in content or ()]
    except ValueError:
        remedy = "Write two digits for each byte."
        raise BadSettings("The bytes must be hexadecimal.", remedy, settings=("content",)) from None
    assert process is not None
    _tell(audit_memory(process, pattern or [], contents=contents, sizes=image_size, fit=fit, stop=stop))


@audit.command()
def keygen(file: Annotated[Path, typer.Argument(help="File for the private key; FILE.pub is the public one.")]) -> None:
    """Make an Ed25519 key to sign ledgers with (--sign-key), and the public one to check them with (--public-key)."""
    from crodobo.ledger.signing import make_key_pair

    public = make_key_pair(file)
    print(f"private key (keep it secret): {file}\npublic key: {public}")


def _hexadecimal(text: str | None, what: str, digits: int, setting: str) -> str | None:
    """Text of that many hexadecimal digits, in lower case."""
    if text is not None and not re.fullmatch(rf"[0-9a-f]{{{digits}}}", text := text.strip().lower()):
        remedy = f"{what.capitalize()} has {digits} hexadecimal digits."
        raise BadSettings(f"{text} is not {what}.", remedy, settings=(setting,))
    return text


def _tell(report: "Report") -> None:
    """Print a report. The status is 1 if something was found."""
    parts = {"checked": report.checked, "found": report.found or ["nothing"]}
    for title, texts in (parts | {"noted": report.noted, "cannot see": report.unseen}).items():
        if texts:
            print(f"{title}:", *texts, sep="\n  ")
    if not report.sound:
        raise typer.Exit(1)
