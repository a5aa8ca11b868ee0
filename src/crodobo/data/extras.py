"""Packages that only some benchmarks and formats need, and that the base install does not have."""

from collections.abc import Iterator
from contextlib import contextmanager

from crodobo.errors import BadData


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import inside the block into an error that says what to install."""
    try:
        yield
    except ImportError as error:
        problem = f"{purpose} needs {(error.name or extra).partition('.')[0]}, which is not installed."
        raise BadData(problem, f'Install it with `pip install "crodobo[{extra}]"`.') from None
