"""`crodobo keys`: API keys of a service."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from crodobo.cli.options import command_group

keys = command_group(
    help="Create, limit, remove and list API keys of a service. A running service sees a change at its next request.",
    no_args_is_help=True,
)
KeyFile = Annotated[Path, typer.Argument(help="File for `crodobo serve --keys`; it only holds hashes of the keys.")]
Name = Annotated[str, typer.Argument(help="Name of the client.")]
NoAdapt = Annotated[bool, typer.Option("--no-adapt", help="Answer requests with this key, but never learn from them.")]
AdaptShare = Annotated[
    float | None,
    typer.Option(metavar="FRACTION", help="Learn at most this share of a query's size from this key; 1 if not set."),
]
AdaptRate = Annotated[
    int | None,
    typer.Option(
        metavar="QUERIES", help="Learn from this key in at most so many queries a minute; no limit if not set."
    ),
]


@keys.command()
def add(
    file: KeyFile,
    name: Name,
    admin: Annotated[bool, typer.Option("--admin", help="Also allow pausing and resetting the service.")] = False,
    no_adapt: NoAdapt = False,
    adapt_share: AdaptShare = None,
    adapt_rate: AdaptRate = None,
) -> None:
    """Create a key and print it once."""
    from crodobo.serve.keys import Limits, add_key

    limits = Limits(not no_adapt, adapt_share, adapt_rate)
    print(add_key(file, name, "admin" if admin else "client", limits))
    print(f"This is the key of {name}. It is shown only once; {file} holds its hash.", file=sys.stderr)


@keys.command()
def limit(
    file: KeyFile,
    name: Name,
    no_adapt: NoAdapt = False,
    adapt_share: AdaptShare = None,
    adapt_rate: AdaptRate = None,
) -> None:
    """Replace the limits of a key; without options it has none. The key itself stays valid."""
    from crodobo.serve.keys import Limits, limit_key

    limit_key(file, name, Limits(not no_adapt, adapt_share, adapt_rate))


@keys.command()
def remove(file: KeyFile, name: Name) -> None:
    """Remove a key."""
    from crodobo.serve.keys import remove_key

    remove_key(file, name)


@keys.command(name="list")
def list_all(file: KeyFile) -> None:
    """List the names of the keys, their roles and their limits."""
    from crodobo.serve.keys import read_keys

    for entry in read_keys(file):
        limits = [] if entry.adapt else ["no-adapt"]
        limits += [] if entry.adapt_share is None else [f"adapt-share {entry.adapt_share:g}"]
        limits += [] if entry.adapt_rate is None else [f"adapt-rate {entry.adapt_rate}"]
        print("\t".join([entry.name, entry.role, *limits]))
