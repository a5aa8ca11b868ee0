"""`crodobo study`: the paper's other tables and figures."""

from typing import Annotated

import typer

from crodobo.cli.given import Given
from crodobo.cli.options import STUDY, Fresh, Out, Quiet, takes
from crodobo.config import check_name
from crodobo.errors import BadSettings


@takes(STUDY)
def study(
    given: Given,
    name: Annotated[str | None, typer.Argument(help="Which study; --list names them.")] = None,
    list_all: Annotated[bool, typer.Option("--list", help="Say what each study shows.")] = False,
    out: Out = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
) -> None:
    """Run one of the paper's ablations or sensitivity studies; write its table and figure.

    Finished runs are kept: the same command goes on where it was stopped.
    """
    given.prepare_process()

    from crodobo.cli.comparison import carry_out_and_show, default_folder, list_studies
    from crodobo.evaluate.comparison import Plan
    from crodobo.evaluate.comparison.studies import STUDIES
    from crodobo.evaluate.settings import ComparisonSettings

    if list_all:
        list_studies()
        return
    if name is None:
        raise BadSettings("No study is named.", f"Choose one of {', '.join(STUDIES)}; --list says what each shows.")
    check_name("study", name, STUDIES)
    wanted, several = STUDIES[name], given.of(ComparisonSettings)
    if "stream" in given.values and any("stream" in entry.stream for entry in wanted.entries):
        problem = f"The study {name} has streams of its own."
        raise BadSettings(problem, "Leave the stream's order out.", settings=("stream",))
    chosen = given.for_plan()
    folder = out or default_folder(f"study-{name}", chosen)
    options = {"plain": True} | chosen.options  # most studies are the paper's
    plan = Plan(folder, chosen.benchmark, wanted.entries, several.seeds, options, chosen.run)
    carry_out_and_show(plan, wanted, several.jobs, fresh, quiet, chosen.notes)
