"""Hooks for MkDocs that replace markers in hand-written pages with lists made from the code."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from crodobo.data.presets import all_presets

ROOT = Path(__file__).parents[1]
CONTRACT = "<!-- contract -->"  # replaced by the checks of the contract suite
PRESETS = "<!-- presets -->"  # replaced by a section for each preset


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replace the markers in a page."""
    return markdown.replace(CONTRACT, "\n".join(f"- {check}" for check in contract())).replace(PRESETS, presets())


def presets() -> str:
    """A section for each preset."""
    sections = []
    for name, preset in all_presets():
        facts = [f"**From.** {preset.address}", f"**Licence.** {preset.licence}"]
        if preset.notes:
            facts.append(" ".join(preset.notes.split()))
        settings = ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in preset.settings.items())
        facts.append(f"**Settings.** {settings}")
        sections.append(f"## {name}\n\n{preset.title}\n\n" + "\n\n".join(facts) + f"\n\n```text\n{preset.layout}\n```")
    return "\n\n".join(sections)


def contract() -> Iterator[str]:
    """The checks of the contract suite. The names of its tests are sentences."""
    for path in sorted((ROOT / "tests" / "contract").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                sentence = node.name.removeprefix("test_").replace("_", " ")
                yield sentence[0].upper() + sentence[1:] + "."
