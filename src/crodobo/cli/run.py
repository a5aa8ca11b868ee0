"""`crodobo run`: one method over one benchmark's stream."""

from pathlib import Path
from typing import Annotated

import typer

from crodobo.cli.given import Given
from crodobo.cli.options import RUN, Fresh, Out, Quiet, takes


@takes(RUN)
def run(
    given: Given,
    out: Out = None,
    fresh: Fresh = False,
    resume: Annotated[bool, typer.Option("--resume", hidden=True)] = False,
    quiet: Quiet = False,
) -> None:
    """Adapt to a labelled stream, score the predictions, and write a report.

    The images are those of a benchmark, or your own (--source and --target). For images without labels there is
    `crodobo adapt`. The same command goes on where it was stopped.
    """
    given.prepare_process()

    from crodobo.cli.console import text_beside_events
    from crodobo.cli.naming import run_name
    from crodobo.cli.progress import make_observer
    from crodobo.cli.summary import print_run
    from crodobo.evaluate.run import run as run_benchmark
    from crodobo.evaluate.settings import RunSettings

    chosen = given.choose()
    settings = given.session(chosen, RunSettings)
    results = out or Path("runs") / run_name(settings)
    with text_beside_events(settings.log):
        with make_observer(quiet, chosen.notes) as observer:
            result = run_benchmark(settings, results, fresh=fresh, observer=observer)
        if quiet:
            print(results)
        else:
            print_run(result, results)
