"""`crodobo send`: send image files to a service and write their predictions to a CSV file."""

import os
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crodobo.cli.options import Quiet
from crodobo.config import Order
from crodobo.errors import BadSettings, CrodoboError

if TYPE_CHECKING:
    from crodobo.client.sending import Sent

KEY = "CRODOBO_KEY"
MOST = 20  # failed files that are listed
LOADING = 1800.0  # seconds to wait for a service that is still loading its model


def send(
    images: Annotated[list[Path], typer.Argument(metavar="DIR|FILES…", help="Image files, and folders of them.")],
    predictions: Annotated[Path, typer.Option(help="CSV file that predictions are added to.")],
    url: Annotated[str, typer.Option(help="Address of the service.")] = "http://127.0.0.1:8000",
    key_file: Annotated[
        Path | None, typer.Option(help=f"File with the API key.  [default: the environment variable {KEY}]")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images in a request.")] = 16,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Requests at a time.")] = 4,
    adapt: Annotated[bool, typer.Option("--adapt/--no-adapt", help="Learn from the images, or only predict.")] = True,
    order: Annotated[Order | None, typer.Option("--order", help="Which comes first.  [default: the service's]")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write a column with the probability of each class.")
    ] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="Read subfolders too.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="DELETE each image once its row is on disk.")] = False,
    ca: Annotated[Path | None, typer.Option(help="Certificate authority of the service (PEM).")] = None,
    cert: Annotated[Path | None, typer.Option(help="Client certificate, if the service wants one (PEM).")] = None,
    cert_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Longest wait for an answer.")] = 60.0,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Longest wait for a service that is busy or not running.")
    ] = 60.0,
    quiet: Quiet = False,
) -> None:
    """Send images to a service, and append a row for each to a CSV file.

    It can be killed at any moment. The same command goes on with the images that have no row. It waits up to half an
    hour for a service that is loading.
    """
    from crodobo.cli.console import files as count_of
    from crodobo.cli.progress import make_observer
    from crodobo.client import Client
    from crodobo.client.sending import find_images
    from crodobo.client.sending import send as send_all
    from crodobo.inbox.predictions import PredictionFile
    from crodobo.serve.keys import is_loopback

    if (cert is None) != (cert_key is None):
        raise BadSettings("A client certificate needs its key.", "Give both.", settings=("cert", "cert_key"))
    files, others = find_images(images, recursive)
    own = (cert, cert_key) if cert and cert_key else None
    key = read_key(key_file)
    with Client(url, key, timeout=timeout, patience=wait, ca=ca, cert=own) as client, make_observer(quiet) as view:
        if client.connection.scheme == "http" and not is_loopback(client.connection.host):
            view.note(f"WARNING: images go to {client.connection.url} unencrypted; use https")
        if others:
            view.note(f"{count_of(len(others))} skipped, for example {others[0].name}: not the name of an image")
        client.connection.note = view.note
        client.wait_until_ready(wait, loading=LOADING if wait else 0.0)
        classes = client.metadata()["parameters"]["classes"]
        client.connection.note = lambda text: None
        columns = ("receipt", *(f"p({name})" for name in classes if probabilities))
        with closing(PredictionFile(predictions.expanduser().absolute(), columns)) as file:
            ask = partial(client.predict_files, adapt=adapt, order=order, probabilities=probabilities)

            def show(sent: "Sent") -> None:
                view.show("send", sent.done, sent.total, describe(sent))

            sent = send_all(client, files, file, ask, batch=batch, concurrency=concurrency, delete=delete, watch=show)
    report(sent, file.path, quiet)


def read_key(path: Path | None) -> str | None:
    """The key, from a file or the environment: others could see it on the command line."""
    try:
        return path.read_text(encoding="utf-8").strip() if path else os.environ.get(KEY)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadSettings(f"The key file {path} cannot be read ({reason}).", settings=("key_file",)) from None


def describe(sent: "Sent") -> str:
    """Progress in one line."""
    rate = sent.predicted / max(1e-9, time.monotonic() - sent.started)
    before = f" · {sent.before} before" if sent.before else ""
    refused = f" · {len(sent.refused)} refused" if sent.refused else ""
    return f"{sent.predicted} predicted{before} · {rate:.1f} images/s{refused}"


def report(sent: "Sent", path: Path, quiet: bool) -> None:
    """Print the result; failed images are an error."""
    if not quiet:
        before = f", {sent.before} already had a prediction" if sent.before else ""
        deleted = f", {sent.deleted} deleted" if sent.deleted else ""
        print(f"{sent.predicted} of {sent.total} images predicted{before}{deleted}")
    print(path)
    for file, reason in sent.refused[:MOST]:
        print(f"{file}: {reason}", file=sys.stderr)
    if len(sent.refused) > MOST:
        print(f"and {len(sent.refused) - MOST} more", file=sys.stderr)
    if sent.refused:
        raise CrodoboError(f"{len(sent.refused)} of {sent.total} images were not predicted; the reasons are above.")
