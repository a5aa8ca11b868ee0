"""Presets: facts about a data set, and settings for it. Each is a TOML file in `presets/`."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from crodobo.config import Classes, DataSettings, MethodSettings, SessionSettings, Settings, Views, check_name
from crodobo.data.layouts import COMPARE, READERS
from crodobo.data.listing import Listing
from crodobo.errors import BadData, BadSettings

Text = Annotated[str, AfterValidator(lambda text: text.strip("\n"))]  # several lines


@dataclass(frozen=True)
class Domain:
    """Where a domain is in the folder of a data set, and how it is read."""

    paths: tuple[str, ...]  # the first that exists is used
    reader: str
    arguments: dict[str, Any]
    counts: dict[str, int]
    total: int | None

    @classmethod
    def of(cls, table: dict[str, Any], key: str, known: dict[str, Any]) -> "Domain":
        arguments = dict(known)
        path, reader = arguments.pop("path", ""), arguments.pop("reader", "any")
        counts = table.get("counts", {}).get(key, {})
        total = table.get("totals", {}).get(key, sum(counts.values()) or None)
        return cls((path,) if isinstance(path, str) else tuple(path), reader, arguments, counts, total)

    def read(self, folder: Path | None, own: Path | None, columns: tuple[str, str] | None) -> Listing:
        """List the domain: at the user's `own` path, or at its usual path in the folder."""
        base = own or folder
        if base is None:
            raise BadSettings("The preset needs the folder of its data.", "Name the folder.", settings=("folder",))
        paths = [base / path for path in self.paths] + ([own] if own else [])
        root = next((path for path in paths if path.exists()), None)
        if root is None:
            raise BadData(f"There is no {paths[0]}.", COMPARE, settings=("folder",))
        arguments = self.arguments | ({"columns": columns} if self.reader == "any" else {})
        return READERS[self.reader](root, **arguments)


class Preset(BaseModel):
    """A data set with two domains, and the settings of a run on it."""

    model_config = ConfigDict(frozen=True)

    name: str
    title: str
    address: str
    licence: str
    layout: Text
    source: Domain
    target: Domain
    classes: Classes = Classes()
    views: Views = Views()
    settings: dict[str, Any] = {}
    metric: str = "accuracy"
    notes: Text = ""

    @property
    def options(self) -> dict[str, Any]:
        """Settings of the method."""
        return self._settings_of(MethodSettings)

    @property
    def run(self) -> dict[str, Any]:
        """Settings of the run: the sizes of queries and images."""
        return self._settings_of(SessionSettings)

    @property
    def data(self) -> dict[str, Any]:
        """Settings of how images are read."""
        return self._settings_of(DataSettings)

    def _settings_of(self, model: type[Settings]) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name in model.model_fields}


def preset_names() -> list[str]:
    """All presets. A family of domain pairs is one name: `pacs/FROM-TO`."""
    return [
        f"{name}/FROM-TO" if "domains" in table else name
        for name, table in sorted(_tables().items(), key=lambda item: (not item[0].startswith("paper/"), item[0]))
    ]


def is_preset(name: str) -> bool:
    """Whether this is the name of a preset or of a family of presets."""
    return name in _tables() or name.partition("/")[0] in _families()


def get_preset(name: str) -> Preset:
    """Look up a preset. One of a family is named like `pacs/art-photo`."""
    if not is_preset(name):
        check_name("preset", name, preset_names(), "benchmark")
    tables = _tables()
    family, _, pair = name.partition("/")
    if name in tables and "domains" not in tables[name]:
        table = domains = tables[name]
        first, second = "source", "target"
    else:
        table, domains = tables[family], tables[family]["domains"]
        first, _, second = pair.partition("-")
        if first not in domains or second not in domains or first == second:
            example = "-".join(list(domains)[:2])
            problem = f"{name} does not name two domains of {family}, which are {', '.join(domains)}."
            raise BadSettings(problem, f"Write, for example, {family}/{example}.", settings=("benchmark",))
    source, target = (Domain.of(table, domain, domains[domain]) for domain in (first, second))
    return Preset(**table | {"name": name, "source": source, "target": target})


def all_presets() -> Iterator[tuple[str, Preset]]:
    """Each preset with its name. Of a family, only one pair is given."""
    for name in preset_names():
        domains = list(_tables().get(name.partition("/")[0], {}).get("domains", ()))
        yield name, get_preset(name.replace("FROM-TO", "-".join(domains[:2])))


@cache
def _tables() -> dict[str, dict[str, Any]]:
    found = [file for file in files("crodobo.data").joinpath("presets").iterdir() if file.name.endswith(".toml")]
    tables = (tomllib.loads(file.read_text(encoding="utf-8")) for file in found)
    return {table["name"]: table for table in tables}


def _families() -> set[str]:
    return {name for name, table in _tables().items() if "domains" in table}
