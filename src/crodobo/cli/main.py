"""The `crodobo` command: its sub-commands, and how errors reach people."""

import atexit
import gc
import signal
import sys
from typing import Annotated

import typer

from crodobo import __version__
from crodobo.cli.adapt import adapt
from crodobo.cli.audit import audit
from crodobo.cli.bench import bench
from crodobo.cli.compare import compare
from crodobo.cli.data import data
from crodobo.cli.keys import keys
from crodobo.cli.methods import methods
from crodobo.cli.run import run
from crodobo.cli.send import send
from crodobo.cli.serve import serve
from crodobo.cli.study import study
from crodobo.errors import CrodoboError, Interrupted

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(adapt)
app.command()(run)
app.command()(serve)
app.command()(send)
app.add_typer(keys, name="keys")
app.command()(compare)
app.command()(study)
app.command()(methods)
app.add_typer(data, name="data")
app.command()(bench)
app.add_typer(audit, name="audit")


def show_version(wanted: bool) -> None:
    if wanted:
        print(f"crodobo {__version__}")
        raise typer.Exit


@app.callback()
def crodobo(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Online domain adaptation that burns after reading."""


def main() -> None:
    """Run a command; an error is one sentence on standard error and a status other than 0."""
    atexit.register(gc.freeze)  # looking through all of torch for garbage when the process ends takes a second
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until a run listens, Ctrl-C simply ends the process
    try:
        app()
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(130)
    except CrodoboError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
