"""Hooks for MkDocs that make pages from the code.

Each registered method gets a page, a row in the overview and a place in the navigation. Each public name gets an entry
in the API reference.
"""

import inspect
import json
import re
import types
from collections.abc import Iterator
from dataclasses import astuple
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import griffe
from annotated_types import Ge, Gt, Le, Lt
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic.fields import FieldInfo

import crodobo
from crodobo.config import MethodSettings
from crodobo.methods import REGISTRY, Method

SIGNS: dict[type, str] = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
SETTING = ["setting", "default", "values", "meaning"]
SOURCE = "Source(torch.rand(4, 1, 32, 32), [0, 1, 0, 1])"  # of the examples
ONLINE_EXAMPLE = f"""\
>>> import torch
>>> from crodobo import Query, Source, get_method
>>> method = get_method("{{name}}")({SOURCE}, {{settings}})
>>> with Query(torch.rand(3, 1, 32, 32)) as query:
...     len(method.step(query).labels)
3
"""
OFFLINE_EXAMPLE = f"""\
>>> import torch
>>> from crodobo import Source, get_method, offline
>>> method = get_method("{{name}}")({SOURCE}, {{settings}})
>>> images, labels = torch.rand(6, 1, 32, 32), torch.tensor([0, 1, 0, 1, 0, 1])
>>> offline(method, images, labels, size=3, epochs=1).samples
6
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site and to the navigation."""
    sections = {"methods/index.md": method_pages(), "api/index.md": api_pages()}
    for pages in sections.values():
        for path, text in pages.items():
            files.append(File.generated(config, path, content=text))
    for item in config.nav or []:
        for title, target in item.items():
            if isinstance(target, str) and target in sections:
                item[title] = list(sections[target])
    return files


def method_pages() -> dict[str, str]:
    """The overview of the methods and a page for each, by path."""
    pages = {"methods/index.md": overview()}
    return pages | {f"methods/{name}.md": method_page(name, method) for name, method in REGISTRY.items()}


def overview() -> str:
    rows = [
        [f"[{name}]({name}.md)", summary(method), ", ".join(protocols(method)), "yes" if method.keeps_target else "no"]
        for name, method in REGISTRY.items()
    ]
    return f"""# Methods

Every method is one file in `src/crodobo/methods/` and takes the same queries. `crodobo.get_method("crodobo")` returns
one by its name. [Add your own](../add-a-method.md), and it is listed here.

{table(["method", "what it does", "protocol", "keeps target"], rows)}

A method that keeps target data is refused while burning is on.

## Settings of all methods

They are keyword arguments of the constructor. The page of a method lists its own settings and other defaults.

{table(SETTING, setting_rows(MethodSettings.model_fields, {}))}
"""


def method_page(name: str, method: type[Method]) -> str:
    """The page of a method: facts, docstring, settings, example and source. Search skips the repeated parts."""
    fields = method.Settings.model_fields
    own = {field: info for field, info in fields.items() if is_own(field, info)}
    usual = {field: info for field, info in fields.items() if field not in own}
    meanings = documented_parameters(method)
    return f"""# {name}

{facts(name, method)}
{{ .facts }}

{docstring(method, show_docstring_description=True, show_root_toc_entry=True)}

## Settings

{table(SETTING, setting_rows(own, meanings)) if own else "This method has no settings of its own."}

<div data-search-exclude markdown>
??? settings "Settings of all methods"

{indented(table(SETTING, setting_rows(usual, meanings)))}

</div>

## Example {{ data-search-exclude }}

{example(name, method)}

## Source {{ data-search-exclude }}

{docstring(method, show_source=True)}
"""


def example(name: str, method: type[Method]) -> str:
    """The example in a method's docstring, or else one of its first query or of its first epoch."""
    if "\nExamples\n---" in (inspect.getdoc(method) or ""):
        return docstring(method, show_docstring_examples=True)
    code = ONLINE_EXAMPLE if "online" in protocols(method) else OFFLINE_EXAMPLE
    settings = 'warmup=0, burn="off"' if method.keeps_target else "warmup=0"
    return f"```pycon\n{code.format(name=name, settings=settings)}```"


def docstring(method: type[Method], **shown: bool) -> str:
    """A directive that lets mkdocstrings insert a part of a docstring."""
    hidden = ("docstring_description", "docstring_examples", "docstring_parameters", "root_heading", "root_toc_entry")
    options = {"members": False, "merge_init_into_class": False, "toc_label": "What it does"}
    options |= {f"show_{part}": False for part in (*hidden, "signature")}
    lines = [f"      {name}: {json.dumps(value)}" for name, value in (options | shown).items()]
    return "\n".join([f"::: {method.__module__}.{method.__qualname__}", "    options:", *lines])


def facts(name: str, method: type[Method]) -> str:
    """The attributes of a method, for the top of its page."""
    learners = method.Settings.model_fields["learners"].default
    parts = {
        "Protocol": listed(protocols(method)),
        "Target data": "kept" if method.keeps_target else "nothing kept",
        "Learners": f"{learners} by default",
    }
    if not getattr(method, "learns", True):
        parts["Weights"] = "not changed by queries"
    if "online" in protocols(method):
        parts["Run"] = f"`crodobo run --method {name}{' --burn off' if method.keeps_target else ''}`"
    if method.__name__ in crodobo.__all__:
        parts["Class"] = f"`crodobo.{method.__name__}`"
    return "\n".join(f"<span>**{title}** {text}</span>" for title, text in parts.items())


def protocols(method: type[Method]) -> tuple[str, ...]:
    return getattr(method, "protocols", ("online",))


def summary(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def documented_parameters(method: type[Method]) -> dict[str, str]:
    """The parameters in the docstrings of a method and of its base classes."""
    found: dict[str, str] = {}
    for kind in method.__mro__[: method.__mro__.index(Method)]:
        docstring = griffe.Docstring(inspect.cleandoc(kind.__dict__.get("__doc__") or ""))
        for section in docstring.parse("numpy", warnings=False):
            if isinstance(section, griffe.DocstringSectionParameters):
                found = {item.name: item.description for item in section.value} | found
    return found


def is_own(field: str, info: FieldInfo) -> bool:
    """Whether a method adds this setting, or has another default or range than other methods."""
    usual = MethodSettings.model_fields.get(field)
    return usual is None or info.default != usual.default or values(info) != values(usual)


def setting_rows(fields: dict[str, FieldInfo], meanings: dict[str, str]) -> Iterator[list[str]]:
    for field, info in fields.items():
        usual = MethodSettings.model_fields.get(field)
        default = f"`{shown(info.default)}`"
        if usual is not None and info.default != usual.default:
            default += f" (others `{shown(usual.default)}`)"
        yield [f"`{field}`", default, values(info), info.description or meanings.get(field, "")]


def values(info: FieldInfo) -> str:
    """The possible values of a setting, in words."""
    return described(info.annotation, info.metadata)


def described(kind: Any, limits: list[Any]) -> str:
    """A type in words.

    >>> described(Annotated[int, Ge(1)] | None, [])
    'int, ≥ 1; or `None`'
    """
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *metadata = get_args(kind)
        return described(inner, [*limits, *metadata])
    if origin is Literal:
        return listed([f"`{shown(value)}`" for value in get_args(kind)], "or")
    if origin in (Union, types.UnionType):
        return "; or ".join(described(part, limits) for part in get_args(kind))
    if kind is type(None):
        return "`None`"
    limits = [limit for item in limits for limit in getattr(item, "metadata", [item])]
    bounds = {type(limit): astuple(limit)[0] for limit in limits if type(limit) in SIGNS}
    name = kind.__name__ if inspect.isclass(kind) else str(kind)
    if bounds.keys() == {Ge, Le}:
        return f"{name}, {bounds[Ge]} to {bounds[Le]}"
    return ", ".join([name, *(f"{SIGNS[sign]} {bound}" for sign, bound in bounds.items())])


def shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def api_pages() -> dict[str, str]:
    """A page for each module with public names, and an index of all names, by path."""
    homes: dict[str, list[str]] = {}
    for name, home in crodobo._HOMES.items():
        homes.setdefault(home, []).append(name)
    pages = {"api/index.md": ""}
    rows = []
    for home, names in sorted(homes.items()):
        page = home.removeprefix("crodobo.").replace(".", "-")
        module = import_module(home)
        parts = [f"# {page}", inspect.getdoc(module) or ""]
        for name in names:
            thing = getattr(crodobo, name)
            target = f"{page}.md#{qualified(home, name)}"
            if thing in REGISTRY.values():
                target = f"../methods/{thing.name}.md"
            else:
                entry = f"heading: crodobo.{name}\n      toc_label: {name}"
                parts.append(f"::: {qualified(home, name)}\n    options:\n      {entry}\n")
            rows.append([f"[`crodobo.{name}`]({target})", summary(thing)])
        pages[f"api/{page}.md"] = "\n\n".join(parts)
    pages["api/index.md"] = f"""# API reference

Import all public names from `crodobo`. Methods have [pages of their own](../methods/index.md).

{table(["name", "what it is"], sorted(rows, key=lambda row: row[0].lower()))}
"""
    return pages


def qualified(home: str, name: str) -> str:
    """The full path of the definition of a public name."""
    thing = getattr(crodobo, name)
    if inspect.ismodule(thing):
        return thing.__name__
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return f"{thing.__module__}.{thing.__qualname__}"
    return f"{home}.{name}"


def table(columns: list[str], rows: Any) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell(text) for text in line) + " |" for line in lines)


def cell(text: str) -> str:
    """A table cell on one line. Outside of code a bar would end the cell, so it is escaped."""
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or r"\|", " ".join(text.split()))


def listed(words: Any, last: str = "and") -> str:
    """Words joined with commas and a last conjunction.

    >>> listed(["one", "two", "three"])
    'one, two and three'
    """
    *first, final = words
    return f"{', '.join(first)} {last} {final}" if first else str(final)


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
