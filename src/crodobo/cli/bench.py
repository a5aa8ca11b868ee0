"""`crodobo bench`: speed and memory."""

import enum
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from crodobo.cli import options as o
from crodobo.cli.resolve import Chosen, choose


class CaseName(enum.StrEnum):
    glyphs = "glyphs"
    resnet18 = "resnet18-64px"


def bench(
    case: Annotated[list[CaseName] | None, typer.Option(help="Measure this case.  [default: all]")] = None,
    benchmark: Annotated[
        str | None, typer.Option("--preset", help="Measure reading the images of a preset instead.")
    ] = None,
    folder: o.Folder = None,
    source: o.SourcePath = None,
    target: o.TargetPath = None,
    classes: o.ClassesFile = None,
    image_size: o.ImageSize = None,
    backbone: o.Backbone = None,
    pretrained: o.Pretrained = None,
    weights: o.Weights = None,
    query_size: o.QuerySize = None,
    cache_size: o.CacheSize = None,
    burn: Annotated[
        bool, typer.Option("--burn", help="Measure what burning costs instead: strict and standard against off.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Timing rounds.  [default: 20, 7 for resnet18-64px, 5 for reading]")
    ] = None,
    queries: Annotated[int, typer.Option(min=10, help="Queries of the memory run; it is read at a tenth too.")] = 500,
    out: Annotated[Path, typer.Option(help="Where the numbers go, as JSON.")] = Path("runs/bench.json"),
) -> None:
    """Measure time per query against the compute floor, parallel learners against sequence, and memory.

    With --preset, or --source and --target: what reading and decoding images takes of the time per query. With --burn:
    what erasing takes.
    """
    arguments = dict(locals())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from rich.console import Console

    from crodobo.storage.files import write_atomically
    from crodobo.storage.lock import locked_folder

    console = Console(stderr=True)

    def note(text: str) -> None:
        console.print(text, highlight=False)

    if benchmark or source or target or folder:
        chosen = choose(arguments)
        with locked_folder(out.parent):
            result = _measure_reading(chosen, rounds or 5, note)
            write_atomically(out, json.dumps(result, indent=2) + "\n")
        _print_reading(result)
    elif burn:
        from crodobo.evaluate.bench import CASES
        from crodobo.evaluate.bench.burning import measure_burning

        with locked_folder(out.parent):
            costs = [
                measure_burning(name, rounds=rounds or CASES[name].rounds, note=note)
                for name in ([name.value for name in case] if case else list(CASES))
            ]
            write_atomically(out, json.dumps(costs, indent=2) + "\n")
        _print_burning(costs)
    else:
        from crodobo.evaluate.bench import CASES, measure

        names = [name.value for name in case] if case else list(CASES)
        with locked_folder(out.parent):
            results = [measure(CASES[name], rounds=rounds, queries=queries, note=note) for name in names]
            write_atomically(out, json.dumps(results, indent=2) + "\n")
        _print_engine(names, results)
    print(out)


def _measure_reading(chosen: Chosen, rounds: int, note: Any) -> dict[str, Any]:
    from crodobo.evaluate.bench import measure_reading
    from crodobo.evaluate.settings import RunSettings
    from crodobo.methods import CroDoBo

    options = CroDoBo.Settings.of(**chosen.options)
    settings = RunSettings.of(benchmark=chosen.benchmark, options=options, **chosen.run)
    return measure_reading(settings, rounds=rounds, note=note)


def _print_reading(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    quarter, whole = result["memory"]["quarter"], result["memory"]["whole"]
    table = Table("", f"{result['benchmark']}, {result['backbone']}, {result['shape'][-1]} px")
    table.add_row("time per query", f"{result['seconds_per_query']:.3f} s")
    table.add_row("reading and decoding, alone", f"{result['reading_seconds']:.3f} s")
    table.add_row("share of the time per query", f"{result['reading_share']:.1%}")
    table.add_row("waited for, with reading ahead", f"{result['waited_share']:.1%}")
    for part in (quarter, whole):
        label = f"memory, source of {part['images']:,.0f} images ({part['source_mb']:,.0f} MB)"
        table.add_row(label, f"{part['resident_mb']:.0f} MB")
    Console().print(table)


def _print_burning(costs: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *(cost["case"] for cost in costs))
    for level in costs[0]["ratio_to_off"]:
        table.add_row(
            f"burning {level}",
            *(f"{cost['seconds_per_query'][level]:.3f} s, {cost['ratio_to_off'][level]:.2f} ×" for cost in costs),
        )
    Console().print(table)


def _print_engine(names: list[str], results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

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
