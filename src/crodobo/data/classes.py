"""One set of class names for two domains: classes are renamed, merged or dropped."""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from crodobo.config import Classes, Renaming
from crodobo.data.listing import Listing
from crodobo.errors import BadData

EVERYTHING_ELSE = "*"


def read_classes(path: Path) -> Classes:
    """Read classes from a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _bad(f"The file of classes {path} cannot be read ({error.strerror}).", "Check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _bad(f"{path} is not valid TOML ({error}).", "Correct it.") from None
    for side in ("source", "target"):
        if isinstance(content.get(side), dict):  # a number may be a common name
            content[side] = {name: str(to) if type(to) is int else to for name, to in content[side].items()}
    return Classes.of(**content)


def rename(listing: Listing, renaming: Renaming, side: str, *, strict: bool = True) -> Listing:
    """Rename and drop classes of a listing. `strict` refuses names that the listing does not have."""
    there = set(listing.labels)
    if strict and (unknown := set(renaming) - there - {EVERYTHING_ELSE}):
        problem = f"The file of classes names {_names(unknown)} in [{side}], but {listing.where} has {_names(there)}."
        raise _bad(problem, "Correct the file.")
    default = renaming.get(EVERYTHING_ELSE)
    common: dict[str, str | Literal[False]] = {
        label: renaming.get(label, label if default is None else default) for label in there
    }
    kept = [number for number, label in enumerate(listing.labels) if common[label] is not False]
    if not kept:
        problem = f"The file of classes drops every class of {listing.where}, which has {_names(there)}."
        raise _bad(problem, "Keep at least two.")
    selected = listing.select(kept) if len(kept) < len(listing.labels) else listing
    return Listing(selected.pictures, [str(common[label]) for label in selected.labels], listing.where)


def common_names(source: Mapping[str, int], target: Mapping[str, int], names: tuple[str, ...] | None) -> list[str]:
    """The names of all classes in order. The target may only have classes that the source has."""
    if unknown := set(target) - set(source):
        both = f"The source has {_names(source)}; the target has {_names(target)}."
        problem = f"The target has {_names(unknown)}, which the source does not have. {both}"
        raise _bad(problem, "Give the classes common names in a file.")
    if names is None:
        return sorted(source, key=natural)
    if sorted(names) != sorted(source):
        problem = f"The names of the classes are {_names(names)}, but the source has {_names(source)}."
        raise _bad(problem, "List exactly the classes of the source.")
    return list(names)


def natural(name: str) -> tuple[bool, int, str]:
    """A sort key: numbers by their size, before words."""
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _bad(problem: str, remedy: str) -> BadData:
    return BadData(problem, remedy, settings=("classes",))


def _names(names: Iterable[str], most: int = 40) -> str:
    known = sorted(names, key=natural)
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")
