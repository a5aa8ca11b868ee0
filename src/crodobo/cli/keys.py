"""`crodobo keys`: who may use a service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from crodobo.cli.options import CONTEXT

keys = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Make, take away and list the keys of a service. A running one sees a change at its next request.",
)
File = Annotated[Path, typer.Argument(help="The file that `crodobo serve --keys` names; it holds their hashes alone.")]
Name = Annotated[str, typer.Argument(help="Whose key it is.")]


@keys.command()
def add(
    file: File,
    name: Name,
    admin: Annotated[
        bool, typer.Option("--admin", help="May also pause, resume, reset and checkpoint the service.")
    ] = False,
) -> None:
    """Make a key and print it, this once."""
    from crodobo.serve.keys import add_key

    print(add_key(file, name, "admin" if admin else "client"))
    print(f"this is the key of {name}, and it is shown this once; {file} has its hash", file=sys.stderr)


@keys.command()
def remove(file: File, name: Name) -> None:
    """Take a key away."""
    from crodobo.serve.keys import remove_key

    remove_key(file, name)


@keys.command(name="list")
def list_all(file: File) -> None:
    """List the keys' names, and what each may."""
    from crodobo.serve.keys import read_keys

    for entry in read_keys(file):
        print(f"{entry.name}\t{entry.role}")
