"""`crodobo keys`: API keys of a service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from crodobo.cli.options import command_group

keys = command_group(
    help="Create, remove and list API keys of a service. A running service sees a change at its next request.",
    no_args_is_help=True,
)
KeyFile = Annotated[Path, typer.Argument(help="File for `crodobo serve --keys`; it only holds hashes of the keys.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]


@keys.command()
def add(
    file: KeyFile,
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Also allow pausing and resetting the service.")] = False,
) -> None:
    """Create a key and print it once."""
    from crodobo.serve.keys import add_key

    print(add_key(file, name, "admin" if admin else "client"))
    print(f"This is the key of {name}. It is shown only once; {file} holds its hash.", file=sys.stderr)


@keys.command()
def remove(file: KeyFile, name: Name) -> None:
    """Remove a key."""
    from crodobo.serve.keys import remove_key

    remove_key(file, name)


@keys.command(name="list")
def list_all(file: KeyFile) -> None:
    """List the names of the keys and their roles."""
    from crodobo.serve.keys import read_keys

    for entry in read_keys(file):
        print(f"{entry.name}\t{entry.role}")
