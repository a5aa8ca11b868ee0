"""`crodobo audit membership`: can an attacker tell from the weights who was in the stream?"""

from typing import TYPE_CHECKING, Annotated

import typer

from crodobo.cli.given import Given
from crodobo.cli.options import MEMBERSHIP, Fresh, Out, Quiet, takes

if TYPE_CHECKING:
    from crodobo.audit.membership.plan import ShadowPlan


@takes(MEMBERSHIP)
def membership(
    given: Given,
    methods: Annotated[
        str,
        typer.Option(help="Methods to attack, separated by commas; source-only is the control: it learns nothing."),
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

    from crodobo.audit.membership.plan import ShadowPlan
    from crodobo.cli.compare import choose_methods
    from crodobo.cli.comparison import default_folder

    names, _ = choose_methods(methods, offline=False)
    chosen = given.for_plan()
    seed = chosen.options.pop("seed", 0)
    name = "membership" if passes == 1 else f"membership-passes{passes}"
    usual = default_folder(name if seed == 0 else f"{name}-seed{seed}", chosen)
    plan = ShadowPlan(
        folder=out or usual,
        benchmark=chosen.benchmark,
        methods=tuple(names),
        runs=runs,
        seed=seed,
        passes=passes,
        options=chosen.options,
        run=chosen.run,
    )
    _carry_out_and_show(plan, jobs, fresh, quiet, list(chosen.notes))


def _carry_out_and_show(plan: "ShadowPlan", jobs: int | None, fresh: bool, quiet: bool, notes: list[str]) -> None:
    """Run what is not done yet, attack, write the files, and print what it means."""
    from crodobo.audit.membership.findings import check_same_images, find
    from crodobo.audit.membership.report import in_words, write_membership
    from crodobo.audit.membership.work import AUDITING, load_scores
    from crodobo.cli.comparison import delete_results, print_table
    from crodobo.cli.console import SteadyConsole
    from crodobo.cli.progress import make_observer
    from crodobo.engine import available_cores
    from crodobo.errors import CrodoboError
    from crodobo.evaluate.comparison import run_tasks
    from crodobo.evaluate.run import load_data
    from crodobo.nn.learner import make_learners
    from crodobo.storage.lock import locked_folder

    settings = plan.settings(plan.methods[0])
    with make_observer(quiet) as observer:
        benchmark = load_data(settings, observer)  # made once, before many processes would
    make_learners(benchmark.source, 1, 0, settings.options)  # is there a backbone?
    console = SteadyConsole(quiet=quiet)

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    with locked_folder(plan.folder):
        if fresh:
            delete_results(plan.tasks)
        for note in notes:
            say(note)
        check_same_images(plan, benchmark)
        with make_observer(quiet) as observer:
            problems = run_tasks(plan.tasks, jobs or available_cores(), observer, AUDITING)
        say("attacking the final weights of each run, with the others as shadows")
        failed = {task.settings.method for task in plan.shadows if load_scores(task) is None}
        findings = [find(plan, benchmark, method) for method in plan.methods if method not in failed]
        if findings and not print_table(console, write_membership(plan, findings)):
            say("the rest of the table is in membership.md; the terminal is too narrow for it")
    for finding in findings:
        say(in_words(finding))
    if quiet:
        print(plan.folder)
    else:
        say(f"{plan.folder}/membership.png")
    if problems:
        texts = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise CrodoboError(f"{len(problems)} shadow runs failed, and their methods are left out ({texts})")
