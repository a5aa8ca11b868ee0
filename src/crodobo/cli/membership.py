"""`crodobo audit membership`: can an attacker tell from the weights who was in the stream?"""

from typing import Annotated

import typer

from crodobo.cli.given import Given
from crodobo.cli.options import MEMBERSHIP, Fresh, Out, Quiet, takes
from crodobo.errors import CrodoboError


@takes(MEMBERSHIP)
def membership(
    given: Given,
    methods: Annotated[
        str, typer.Option(help="Methods to attack, separated by commas; source-only learns nothing: the control.")
    ] = "crodobo,single,ent,tent,source-only",
    runs: Annotated[
        int, typer.Option(help="Shadow runs of each method, an even number; below 16 the figures are unreliable.")
    ] = 32,
    passes: Annotated[
        int, typer.Option(min=1, help="Times that a run sees its stream; more than one is a control, not burning.")
    ] = 1,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; all cores if not set.")] = None,
    out: Out = None,
    fresh: Fresh = False,
    quiet: Quiet = False,
) -> None:
    """Measure how well attackers who have a method's final weights tell who was in its stream.

    For benchmarks and labelled data of your own, never for a private stream: samples are read again and again. It is a
    measurement, so the status is 0 whatever it finds. Finished shadow runs are kept: the same command goes on where it
    was stopped.
    """
    given.prepare_process()

    from crodobo.audit.membership.findings import check_same_images, find
    from crodobo.audit.membership.plan import ShadowPlan
    from crodobo.audit.membership.report import in_words, write_membership
    from crodobo.audit.membership.work import AUDITING, load_scores
    from crodobo.cli.compare import choose_methods
    from crodobo.cli.comparison import default_folder, prepared, print_table
    from crodobo.cli.console import SteadyConsole
    from crodobo.engine import available_cores
    from crodobo.evaluate.comparison import run_tasks

    names, _ = choose_methods(methods, offline=False)
    chosen = given.for_plan()
    seed = chosen.options.pop("seed", 0)
    name = f"membership{f'-passes{passes}' if passes > 1 else ''}{f'-seed{seed}' if seed else ''}"
    folder = out or default_folder(name, chosen)
    plan = ShadowPlan(folder, chosen.benchmark, tuple(names), runs, seed, passes, chosen.options, chosen.run)
    settings = plan.settings(plan.methods[0])
    with prepared(folder, plan.tasks, settings, fresh, quiet, chosen.notes) as (benchmark, observer):
        check_same_images(plan, benchmark)
        problems = run_tasks(plan.tasks, jobs or available_cores(), observer, AUDITING)
        observer.note("attacking the final weights of each run, with the others as shadows")
        failed = {task.settings.method for task in plan.shadows if load_scores(task) is None}
        findings = [find(plan, benchmark, method) for method in plan.methods if method not in failed]
        table = write_membership(plan, findings) if findings else None
    console = SteadyConsole(quiet=quiet)
    if table and not print_table(console, table):
        console.print_line("The terminal is too narrow for the whole table. It is in membership.md.")
    for finding in findings:
        console.print_line(in_words(finding))
    console.print_line(f"{folder}/membership.png")
    if quiet:
        print(folder)
    if problems:
        texts = " ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise CrodoboError(f"{len(problems)} shadow runs failed, and their methods are left out. {texts}")
