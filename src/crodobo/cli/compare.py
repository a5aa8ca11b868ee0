"""`crodobo compare`: methods against each other under one protocol."""

from crodobo.cli.given import Given
from crodobo.cli.options import COMPARE, Fresh, Out, Quiet, takes
from crodobo.config import check_name
from crodobo.errors import BadSettings


@takes(COMPARE)
def compare(given: Given, out: Out = None, fresh: Fresh = False, quiet: Quiet = False) -> None:
    """Compare methods on the same streams; write the paper's main table and a report.

    All start from the same warm-up. Finished runs are kept: the same command goes on where it was stopped, and further
    methods or seeds are added to the table.
    """
    given.prepare_process()

    from crodobo.cli.comparison import carry_out_and_show, default_folder
    from crodobo.evaluate.comparison import Entry, Plan
    from crodobo.evaluate.settings import ComparisonSettings

    wanted = given.of(ComparisonSettings)
    names, left_out = choose_methods(wanted.methods, wanted.offline)
    chosen = given.for_plan()
    folder = out or default_folder("compare", chosen)
    entries = tuple(Entry(name, name, name) for name in names)
    protocol = (chosen.options, chosen.run, wanted.offline, wanted.epochs)
    plan = Plan(folder, chosen.benchmark, entries, wanted.seeds, *protocol)
    notes = [f"left out: {', '.join(left_out)} have no online form; --offline runs them"] if left_out else []
    carry_out_and_show(plan, None, wanted.jobs, fresh, quiet, [*chosen.notes, *notes])


def choose_methods(text: str, offline: bool) -> tuple[list[str], list[str]]:
    """The methods that were named, and those left out because they need the offline protocol.

    >>> choose_methods("dan,shot", offline=True)
    (['dan', 'shot'], [])
    >>> choose_methods("paper,tent", offline=False)[0][-2:]
    ['crodobo', 'tent']
    """
    from crodobo.methods import CRODOBO, PAPER, REGISTRY

    groups: dict[str, list[str]] = {
        "all": list(REGISTRY),
        "paper": [method.name for method in (*PAPER, *CRODOBO) if method.name not in ("cdan-e", "single", "continual")],
    }
    parts = [part.strip() for part in text.split(",")]
    names: list[str] = []
    for part in parts:
        names += [name for name in groups[part] if name not in names] if part in groups else [part]
    for name in names:
        check_name("method", name, REGISTRY, "methods")
    offline_only = [name for name in names if "online" not in REGISTRY[name].protocols]
    if offline or not offline_only:
        return names, []
    if named := [name for name in offline_only if name in parts]:
        remedy = f"Leave {'them' if len(named) > 1 else 'it'} out, or add the offline protocol."
        raise BadSettings(f"There is no online form of {' and '.join(named)}.", remedy, settings=("offline",))
    return [name for name in names if name not in offline_only], offline_only
