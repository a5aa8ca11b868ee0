"""`crodobo data`: the presets, and whether a copy of their data is complete."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crodobo.cli.options import command_group
from crodobo.errors import BadData, BadSettings

if TYPE_CHECKING:
    from rich.console import Console

    from crodobo.data.check import DomainCheck

data = command_group()


@data.callback(invoke_without_command=True)
def list_all(context: typer.Context) -> None:
    """List the presets: what each is, where to get it, its licence, and its folder."""
    if context.invoked_subcommand:
        return
    from rich.console import Console

    from crodobo.data.presets import all_presets

    console = Console()
    _print(console, "glyphs", "printed digits → handwritten digits, 10 classes; built in, nothing to fetch", {})
    for name, preset in all_presets():
        facts = {"from": preset.address, "licence": preset.licence}
        if preset.notes:
            facts["note"] = " ".join(preset.notes.split())
        _print(console, name, preset.title, facts, preset.layout)
    console.print("\ncrodobo data check NAME FOLDER checks a copy; crodobo run --preset NAME --data FOLDER runs it")


@data.command()
def check(
    name: Annotated[str, typer.Argument(help="The preset.")],
    folder: Annotated[Path | None, typer.Argument(help="Its folder.")] = None,
    source: Annotated[Path | None, typer.Option(help="Folder of the source, if it is separate.")] = None,
    target: Annotated[Path | None, typer.Option(help="Folder of the target, if it is separate.")] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image too; takes minutes.")] = False,
) -> None:
    """Compare a copy with the known totals and list what is missing. The status is 0 if nothing is."""
    from rich.console import Console

    from crodobo.config import DataSettings
    from crodobo.data.check import check as check_copy
    from crodobo.data.presets import get_preset

    if folder is None and (source is None or target is None):
        problem = "The folder of the data is missing."
        raise BadSettings(problem, "Give it, or both domains.", settings=("source", "target"))
    preset = get_preset(name)
    paths = {"folder": folder, "source": source, "target": target}
    settings = DataSettings.of(**{side: path.expanduser().absolute() for side, path in paths.items() if path})
    console = Console()
    with console.status("checking the files"):
        findings = check_copy(preset, settings, decode=decode)
    for finding in findings:
        _print_check(console, finding)
    if problems := sum(len(finding.problems) for finding in findings):
        raise BadData(f"{name} has {problems} problem{'s' if problems > 1 else ''}; see above.")
    console.print(f"{name} is complete", style="bold")


def _print(console: "Console", name: str, title: str, facts: dict[str, str], layout: str = "") -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print()
    console.print(Text.assemble((name, "bold"), f"  {title}"), highlight=False)
    for what, text in facts.items():
        console.print(Padding(Text(f"{what}: {text}"), (0, 0, 0, 2)), highlight=False)
    if layout:
        console.print(Padding(Text(layout, style="dim"), (0, 0, 0, 4)), highlight=False)


def _print_check(console: "Console", finding: "DomainCheck") -> None:
    from rich.table import Table
    from rich.text import Text

    total = sum(finding.counts.values())
    known = f" of {finding.total:,}" if finding.total else ""
    console.print(f"\n{finding.side}: {total:,} images{known}", style="bold", highlight=False)
    table = Table("class", "images", "known", box=None, padding=(0, 2, 0, 0))
    for name in finding.counts | finding.known:
        there, should = finding.counts.get(name), finding.known.get(name)
        table.add_row(Text(name), f"{there:,}" if there else "–", f"{should:,}" if should else "–")
    if finding.counts:
        console.print(table, highlight=False)
    for problem in finding.problems[:20]:
        console.print(f"  {problem}", style="red", highlight=False, markup=False, soft_wrap=True)
    if len(finding.problems) > 20:
        console.print(f"  and {len(finding.problems) - 20} more", style="red", highlight=False)
