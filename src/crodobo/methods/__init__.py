"""Methods by name. A new one is a file here and a line in `REGISTRY`."""

from crodobo.errors import BadSettings
from crodobo.methods.base import Method
from crodobo.methods.crodobo import CroDoBo
from crodobo.methods.single import Single
from crodobo.methods.source_only import SourceOnly

REGISTRY: dict[str, type[Method]] = {method.name: method for method in (CroDoBo, Single, SourceOnly)}

__all__ = ["REGISTRY", "CroDoBo", "Method", "Single", "SourceOnly", "get_method"]


def get_method(name: str) -> type[Method]:
    """The method of that name.

    >>> get_method("crodobo").__name__
    'CroDoBo'
    """
    if name not in REGISTRY:
        raise BadSettings(f"there is no method {name!r}; the methods are {', '.join(REGISTRY)}")
    return REGISTRY[name]
