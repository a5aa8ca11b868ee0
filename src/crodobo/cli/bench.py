"""`crodobo bench`: speed and memory."""

import enum
import json
from pathlib import Path
from typing import Annotated

import typer


class CaseName(enum.StrEnum):
    glyphs = "glyphs"
    resnet18 = "resnet18-64px"


def bench(
    case: Annotated[list[CaseName] | None, typer.Option(help="Measure this case.  [default: all]")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Timing rounds.  [default: 20 and 7]")] = None,
    queries: Annotated[int, typer.Option(min=10, help="Queries of the memory run; it is read at a tenth too.")] = 500,
    out: Annotated[Path, typer.Option(help="Where the numbers go, as JSON.")] = Path("runs/bench.json"),
) -> None:
    """Measure time per query against the compute floor, parallel learners against sequence, and memory."""
    from rich.console import Console
    from rich.table import Table

    from crodobo.bench import CASES, measure
    from crodobo.files import sole_user, write_atomically

    console = Console(stderr=True)
    names = [chosen.value for chosen in case] if case else list(CASES)
    with sole_user(out.parent):
        results = [
            measure(CASES[name], rounds=rounds, queries=queries, note=lambda text: console.print(text, highlight=False))
            for name in names
        ]
        write_atomically(out, json.dumps(results, indent=2) + "\n")

    table = Table("", *names)
    rows = {
        "time per query": "{times[seconds_per_query]:.3f} s",
        "compute floor": "{times[floor_seconds]:.3f} s",
        "overhead": "{times[overhead]:.2f}",
        "speed-up over one thread": "{times[speedup_over_one_thread]:.2f}",
        "speed-up over all cores inside": "{times[speedup_over_all_cores]:.2f}",
        "memory early": "{memory[early_mb]:.0f} MB at query {memory[early_queries]}",
        "memory late": "{memory[late_mb]:.0f} MB at query {memory[late_queries]}",
        "memory growth": "{memory[growth]:.1%}",
    }
    for label, pattern in rows.items():
        table.add_row(label, *(pattern.format(**result) for result in results))
    Console().print(table)
    print(out)
