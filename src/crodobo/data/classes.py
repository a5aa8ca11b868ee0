"""Classes of two domains under one set of names: mapped, merged, dropped."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from crodobo.config import Classes, Renaming
from crodobo.data.listing import Listing
from crodobo.errors import BadData

EVERYTHING_ELSE = "*"


def read_classes(path: Path) -> Classes:
    """The classes of a TOML file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadData(f"the classes' file {path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path} is not TOML ({error})") from None
    for side in ("source", "target"):
        if isinstance(content.get(side), dict):
            content[side] = {
                name: str(to) if isinstance(to, int) and not isinstance(to, bool) else to
                for name, to in content[side].items()
            }
    return Classes.of(**content)


def rename(listing: Listing, renaming: Renaming, side: str, *, strict: bool = True) -> Listing:
    """The listing under common names, without what is dropped; `strict` refuses names that it does not have."""
    there = set(listing.labels)
    if strict and (unknown := sorted(set(renaming) - there - {EVERYTHING_ELSE}, key=natural)):
        raise BadData(
            f"the classes' file names {_names(unknown)} in [{side}], but {listing.where} has "
            f"{_names(sorted(there, key=natural))}"
        )
    default = renaming.get(EVERYTHING_ELSE)
    common: dict[str, str | Literal[False]] = {
        label: renaming.get(label, label if default is None else default) for label in there
    }
    kept = [number for number, label in enumerate(listing.labels) if common[label] is not False]
    if not kept:
        raise BadData(f"every class of {listing.where} is dropped; it has {_names(sorted(there, key=natural))}")
    chosen = listing.chosen(kept) if len(kept) < len(listing.labels) else listing
    return Listing(chosen.pictures, [str(common[label]) for label in chosen.labels], listing.where)


def common_names(source: Mapping[str, int], target: Mapping[str, int], names: tuple[str, ...] | None) -> list[str]:
    """The names of all classes in order; those of the target have to be among the source's.

    >>> common_names({"b": 1, "a": 1}, {"a": 1}, None)
    ['a', 'b']
    >>> common_names({"cat": 1, "dog": 1}, {"cats": 1, "dog": 1}, None)
    Traceback (most recent call last):
    ...
    crodobo.errors.BadData: the target has a class cats that the source does not have; the source has cat, dog; the
    target has cats, dog; give them common names in a file (--classes)
    """
    if strange := sorted(set(target) - set(source), key=natural):
        raise BadData(
            f"the target has {'a class' if len(strange) == 1 else 'classes'} {_names(strange)} that the source does "
            f"not have; the source has {_names(sorted(source, key=natural))}; the target has "
            f"{_names(sorted(target, key=natural))}; give them common names in a file (--classes)"
        )
    if names is None:
        return sorted(source, key=natural)
    if sorted(names) != sorted(source):
        raise BadData(
            f"the classes are to be {_names(list(names))}, but the source has {_names(sorted(source, key=natural))}"
        )
    return list(names)


def natural(name: str) -> tuple[bool, int, str]:
    """Numbers by their size, before words.

    >>> sorted(["10", "9", "a"], key=natural)
    ['9', '10', 'a']
    """
    return (False, int(name), "") if name.isdecimal() else (True, 0, name)


def _names(names: list[str], most: int = 40) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
