"""Help of commands with many options, in groups."""

from typing import Any

from typer.core import TyperCommand


class SettingsCommand(TyperCommand):
    """A command whose help shows options in groups."""

    hint = (
        "Every setting can also be given in the environment (CRODOBO_QUERY_SIZE=8) and in a file (--config). `crodobo "
        "config` shows which value is used and where it comes from."
    )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[Any]] = {}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                names, text = record
                about, bracket, facts = text.partition("  [")
                if not facts:  # a switch that is off by default
                    names = names.partition(" / --no-")[0]
                text = about + bracket + facts.replace(" ", "\N{NO-BREAK SPACE}")
                groups.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append((names, text))
        for group, records in groups.items():
            with formatter.section(group):
                formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        formatter.write_text(self.hint)


class MethodCommand(SettingsCommand):
    """A command that runs one method: options that only the method knows are read when the method is loaded."""

    allow_extra_args = True
    ignore_unknown_options = True
    hint = (
        "Settings of the method are options too, for example --tau 0.9; `crodobo methods NAME` lists them. "
        f"{SettingsCommand.hint}"
    )
