"""`crodobo adapt`: a private stream of image files, adapted to, predicted, deleted."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.burn.relaunch import relaunch
from crodobo.cli import options as o
from crodobo.cli.resolve import choose, method_settings
from crodobo.errors import BadSettings


@o.takes(o.Private, o.OneMethod, o.Images, o.Network, o.Meeting)
def adapt(
    inbox: Annotated[Path, typer.Option(help="The folder with private images.")],
    predictions: Annotated[Path, typer.Option(help="The CSV that predictions are appended to.")],
    source: o.SourcePath = None,
    benchmark: Annotated[
        str | None, typer.Option("--preset", help="Use the source and the settings of a preset of `crodobo data`.")
    ] = None,
    folder: o.Folder = None,
    watch: Annotated[bool, typer.Option("--watch", help="Go on as images arrive, until Ctrl-C or SIGTERM.")] = False,
    max_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="Do not wait longer for a query to be full.")
    ] = 10.0,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--oldest-first",
            help="The order of files that lie there: learners want queries of mixed classes.  "
            "[default: shuffled, with --watch the oldest first]",
        ),
    ] = None,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Leave images that are predicted where they are.")
    ] = False,
    recursive: Annotated[bool, typer.Option("--recursive", help="Look into the folders of the inbox too.")] = False,
    quarantine: Annotated[
        Path | None, typer.Option(help="Where files go that cannot be decoded.  [default: INBOX/quarantine]")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write a column for the probability of each class.")
    ] = False,
    state: Annotated[
        Path | None, typer.Option(help="Where the learners' state is kept.  [default: PREDICTIONS.state]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with new learners instead of going on.")] = False,
    checkpoint_every: Annotated[int, typer.Option(help="Queries between checkpoints.")] = 10,
    quiet: o.Quiet = False,
    **shared: Any,
) -> None:
    """Adapt to private images without labels: predict each, append it to a CSV, then DELETE the image.

    Killed at any moment and started again with the same command it loses no prediction, predicts no image twice, and
    leaves none that has its prediction.
    """
    arguments = {**locals(), **shared}
    if shared["burn"] is o.Burn.strict:
        relaunch()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from crodobo.cli.progress import make_observer
    from crodobo.cli.summary import print_adapted
    from crodobo.data.presets import get_preset
    from crodobo.inbox.adapt import adapt as adapt_to
    from crodobo.inbox.settings import AdaptSettings

    if source is None and benchmark is None:
        raise BadSettings(
            "there is no source; name labelled public images with --source PATH, or a preset with --preset NAME"
        )
    if benchmark:
        get_preset(benchmark)  # or the sentence that there is none
    chosen = choose(arguments, sides=("source",))
    inbox, predictions = inbox.expanduser().absolute(), predictions.expanduser().absolute()
    if (classes := shared["classes"]) and classes.resolve().is_relative_to(inbox.resolve()):
        raise BadSettings(f"the classes' file cannot be in the inbox: {classes}; move it to another place")
    state = (state or predictions.with_name(f"{predictions.name}.state")).expanduser().absolute()
    quarantine = (quarantine or inbox / "quarantine").expanduser().absolute()
    chosen.run.pop("stream", None)
    settings = AdaptSettings.of(
        inbox=inbox,
        predictions=predictions,
        state=state,
        quarantine=quarantine,
        benchmark=chosen.benchmark,
        method=shared["method"],
        options=method_settings(arguments, chosen),
        max_wait=max_wait,
        watch=watch,
        shuffle=not watch if shuffle is None else shuffle,
        recursive=recursive,
        keep_files=keep_files,
        probabilities=probabilities,
        prove_every=shared["prove_every"],
        sign_key=shared["sign_key"],
        log=shared["log"],
        **chosen.run,
    )
    if keep_files and not quiet:
        print(f"images in {inbox} are kept (--keep-files); predictions go to {predictions}", flush=True)
    elif not quiet:
        print(f"EACH IMAGE IN {inbox} IS DELETED once its prediction is in {predictions}", flush=True)
    with make_observer(quiet) as reporter:
        for note in chosen.notes:
            reporter.note(note)
        summary = adapt_to(settings, fresh=fresh, observer=reporter)
    if quiet:
        print(predictions)
    else:
        print_adapted(summary)
