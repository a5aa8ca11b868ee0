"""What tests of commands share."""

from collections.abc import Callable
from pathlib import Path

import pytest

Crodobo = Callable[..., tuple[int, str, str]]

# The smallest stream that says anything: two queries of eight, from a warm-up of one step.
TINY = ("--queries", "2", "--query-size", "8", "--warmup", "1")


@pytest.fixture(scope="session")
def tiny() -> tuple[str, ...]:
    """The smallest settings that all runs of a comparison can share."""
    return TINY


@pytest.fixture(scope="session")
def comparison(crodobo: Crodobo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods with two seeds, carried out; not to be changed: take a copy."""
    folder = tmp_path_factory.mktemp("comparison") / "compared"
    status, _, errors = crodobo(
        "compare", "--methods", "source-only,ent,crodobo", "--seeds", "0,1", *TINY, "--out", folder
    )
    assert (status, errors) == (0, "")
    return folder
