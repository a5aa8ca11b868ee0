"""`crodobo audit`: look over what runs have left behind. The status is 0 if it is sound, 1 on a find.

`membership` measures and does not judge: its status is 0 whatever it finds.
"""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crodobo.cli.membership import membership
from crodobo.cli.options import CONTEXT
from crodobo.config import Fit
from crodobo.errors import BadSettings

if TYPE_CHECKING:
    from crodobo.audit.report import Report

audit = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Look over what runs have left behind: the status is 0 if all is sound, 1 on a find.",
)

audit.command()(membership)


@audit.command()
def ledger(
    file: Annotated[Path, typer.Argument(help="The ledger, ledger.jsonl.")],
    public_key: Annotated[
        Path | None, typer.Option(help="The Ed25519 key whose signatures it must have (PEM or 32 raw bytes).")
    ] = None,
    expect_head: Annotated[
        str | None, typer.Option(metavar="HASH", help="The last line's hash, as it was kept elsewhere.")
    ] = None,
    unclosed: Annotated[
        bool, typer.Option("--unclosed", help="Accept that it ends without a closing line, as after a kill.")
    ] = False,
) -> None:
    """Find lines of a ledger that were edited, dropped, moved, inserted or cut short, and say which."""
    from crodobo.audit.ledger import audit_ledger
    from crodobo.ledger.signing import load_public_key

    if expect_head is not None and not re.fullmatch(r"[0-9a-f]{64}", expect_head := expect_head.strip().lower()):
        raise BadSettings(f"--expect-head {expect_head} is no hash; it has 64 hexadecimal digits")
    key = load_public_key(public_key) if public_key else None
    _tell(audit_ledger(file, public_key=key, expect_head=expect_head, unclosed=unclosed))


@audit.command()
def disk(
    folder: Annotated[Path, typer.Argument(help="What a run has written: results, state, cache, temporary files.")],
    pattern: Annotated[
        list[Path], typer.Option(metavar="FILE", help="An image to look for, or a folder of them; may be repeated.")
    ],
    image_size: Annotated[
        list[int] | None,
        typer.Option(
            min=8,
            max=1024,
            help="Pixels a side at which it was met; may be repeated.  [default: the models' in FOLDER]",
        ),
    ] = None,
    fit: Annotated[
        Fit | None, typer.Option("--fit", help="How it was made square.  [default: all ways are looked for]")
    ] = None,
) -> None:
    """Look through all files of a folder for bytes and pixels of images that must not be there."""
    from crodobo.audit.disk import audit_disk

    _tell(audit_disk(folder, pattern, sizes=image_size, fit=fit))


@audit.command()
def memory(
    process: Annotated[int | None, typer.Argument(metavar="PID", help="The process to search.")] = None,
    self_test: Annotated[
        bool, typer.Option("--self-test", help="Instead, start processes that burn test queries, and search those.")
    ] = False,
    pattern: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="An image to look for, or a folder; may be repeated.")
    ] = None,
    content: Annotated[
        list[str] | None, typer.Option("--bytes", metavar="HEX", help="Bytes to look for; may be repeated.")
    ] = None,
    image_size: Annotated[
        list[int] | None, typer.Option(min=8, max=1024, help="Pixels a side at which images are met; may be repeated.")
    ] = None,
    fit: Annotated[
        Fit | None, typer.Option("--fit", help="How they are made square.  [default: all ways are looked for]")
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Hold the process while it is searched.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Self-test: all networks with 1, 2 and 4 learners (about 20 minutes).")
    ] = False,
    queries: Annotated[
        int | None, typer.Option(min=1, help="Self-test: test queries before a search.  [default: 10, full 100]")
    ] = None,
) -> None:
    """Search all memory of a running process for images, or see whether burning leaves any on this machine."""
    if self_test == (process is not None):
        raise BadSettings("name a process by its number, or give --self-test: one of the two")
    if self_test:
        from crodobo.audit.selftest import cases
        from crodobo.audit.selftest import self_test as test

        _tell(test(cases(queries or (100 if full else 10), full=full), lambda text: print(text, file=sys.stderr)))
        return
    from crodobo.audit.memory import audit_memory

    try:
        contents = [bytes.fromhex(text) for text in content or ()]
    except ValueError:
        raise BadSettings("--bytes takes hexadecimal digits, two for each byte") from None
    assert process is not None
    _tell(audit_memory(process, pattern or [], contents=contents, sizes=image_size, fit=fit, stop=stop))


@audit.command()
def keygen(
    file: Annotated[Path, typer.Argument(help="Where the private key goes; FILE.pub is the public one.")],
) -> None:
    """Make an Ed25519 key to sign ledgers with (--sign-key), and the public one to check them with (--public-key)."""
    from crodobo.ledger.signing import make_key_pair

    public = make_key_pair(file)
    print(f"private key, to be kept secret: {file}\npublic key: {public}")


def _tell(report: "Report") -> None:
    """Print a report; the status tells whether it is sound."""
    for title, texts in (
        ("checked", report.checked),
        ("found", report.found or ["nothing"]),
        ("noted", report.noted),
        ("cannot see", report.unseen),
    ):
        if texts:
            print(f"{title}:")
            for text in texts:
                print(f"  {text}")
    if not report.sound:
        raise typer.Exit(1)
