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
from crodobo.cli.compare import compare
from crodobo.cli.config import config
from crodobo.cli.data import data
from crodobo.cli.errors import command_of, options_of, sentence, usage_sentence
from crodobo.cli.help import MethodCommand, SettingsCommand
from crodobo.cli.keys import keys
from crodobo.cli.methods import methods
from crodobo.cli.options import command_group
from crodobo.cli.run import run
from crodobo.cli.send import send
from crodobo.cli.serve import serve
from crodobo.cli.study import study
from crodobo.errors import CrodoboError, Interrupted

UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer has a copy of click, and does not export this

app = command_group(no_args_is_help=True, pretty_exceptions_enable=False)
app.command(cls=MethodCommand)(adapt)
app.command(cls=MethodCommand)(run)
app.command(cls=MethodCommand)(serve)
app.command()(send)
app.add_typer(keys, name="keys")
app.command(cls=SettingsCommand)(compare)
app.command(cls=SettingsCommand)(study)
app.command()(methods)
app.add_typer(data, name="data")
app.add_typer(config, name="config")
app.add_typer(audit, name="audit")


@app.command(hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench() -> None:
    """Measure speed and memory, in earlier versions."""
    raise CrodoboError("The benchmarks are scripts of the repository.", "Run `make bench` there.")


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
    command = typer.main.get_command(app)
    try:
        sys.exit(command(standalone_mode=False) or 0)
    except Interrupted as error:
        print(error, file=sys.stderr)
        sys.exit(130)
    except CrodoboError as error:
        options = options_of(command_of(command, sys.argv[1:]))
        print(f"error: {sentence(error, options, *sys.argv)}", file=sys.stderr)
    except UsageError as error:
        asked = type(error).__name__ == "NoArgsIsHelpError"  # its message is the help
        print(error if asked else f"error: {usage_sentence(error)}", file=sys.stderr)
    sys.exit(2)
