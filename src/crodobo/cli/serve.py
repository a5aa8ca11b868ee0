"""`crodobo serve`: a private stream over HTTP, adapted to, answered, burned."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.burn.relaunch import relaunch
from crodobo.cli import options as o
from crodobo.cli.resolve import choose, method_settings
from crodobo.errors import BadSettings


@o.takes(o.Private, o.OneMethod, o.Images, o.Network, o.Meeting)
def serve(
    benchmark: Annotated[
        str | None,
        typer.Option("--preset", "--benchmark", help="The source and the settings of a preset.  [default: glyphs]"),
    ] = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    host: Annotated[str, typer.Option(help="Where to listen; others than this machine need --keys.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port.")] = 8000,
    name: Annotated[str, typer.Option(help="What clients call the model.")] = "crodobo",
    state: Annotated[
        Path | None, typer.Option(help="Where the learners' state and the ledger are kept.  [default: runs/serve-NAME]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with new learners instead of going on.")] = False,
    keys: Annotated[Path | None, typer.Option(help="The file of keys that `crodobo keys` makes.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate, with those in between (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Clients must have a certificate of this authority (PEM).")
    ] = None,
    max_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Do not wait longer for a query to be full.")
    ] = 0.05,
    queue: Annotated[int, typer.Option(help="Requests at a time; more are told to come again.")] = 128,
    deadline: Annotated[float, typer.Option(metavar="SECONDS", help="The longest that a request waits.")] = 30.0,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="The largest body.")] = 64 * 2**20,
    max_pixels: Annotated[int, typer.Option(help="The largest image, in pixels.")] = 40_000_000,
    rate: Annotated[float | None, typer.Option(help="Requests a second of one client.  [default: no limit]")] = None,
    checkpoint_every: Annotated[
        int, typer.Option(help="Queries between checkpoints; with 1 a kill forgets nothing that was answered.")
    ] = 10,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing before the end.")] = False,
    **shared: Any,
) -> None:
    """Answer images over HTTP with a model that adapts to them, and erase each query after its answer.

    Speaks the Open Inference Protocol v2, and takes plain images at /v1/predict; / is a page to look at.
    """
    arguments = {**locals(), **shared}
    if shared["burn"] is o.Burn.strict:
        relaunch()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        from crodobo.serve.server import Address
        from crodobo.serve.server import serve as serve_at
    except ImportError:
        raise BadSettings('the service needs more packages; install them with pip install "crodobo[serve]"') from None

    from crodobo.cli.progress import make_observer
    from crodobo.serve.service import Service
    from crodobo.serve.settings import ServeSettings

    if benchmark is None and source is None:
        arguments["benchmark"] = "glyphs"
    chosen = choose(arguments, sides=("source",))
    chosen.run.pop("stream", None)
    settings = ServeSettings.of(
        benchmark=chosen.benchmark,
        name=name,
        state=(state or Path("runs") / f"serve-{name}").expanduser().absolute(),
        method=shared["method"],
        options=method_settings(arguments, chosen),
        max_wait=max_wait,
        queue=queue,
        deadline=deadline,
        max_body=max_body,
        max_pixels=max_pixels,
        rate=rate,
        prove_every=shared["prove_every"],
        sign_key=shared["sign_key"],
        log=shared["log"],
        **chosen.run,
    )
    address = Address(host, port, keys, tls_cert, tls_key, tls_client_ca)
    address.check()
    with make_observer(quiet) as reporter:
        for note in chosen.notes:
            reporter.note(note)
        if not keys:
            reporter.note("WARNING: no --keys, so everybody on this machine may use the service")
        with Service(settings, reporter, fresh=fresh) as service:
            serve_at(service, address)
    answered = service.totals["queries"]
    print(f"stopped in order after {answered} {'query' if answered == 1 else 'queries'}; the same command goes on")
