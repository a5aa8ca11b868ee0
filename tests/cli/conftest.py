"""Commands as tests call them: in this process, or in one of their own."""

import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crodobo.cli.main import main

Crodobo = Callable[..., tuple[int, str, str]]

# The smallest stream that says anything: two queries of eight, from a warm-up of one step.
TINY = ("--queries", "2", "--query-size", "8", "--warmup", "1")


@pytest.fixture(scope="session")
def crodobo() -> Crodobo:
    """Run a command in this process; its status and what it printed."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        out, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["crodobo", *map(str, arguments)])
            patch.setenv("COLUMNS", "100")
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(errors),
                pytest.raises(SystemExit) as end,
            ):
                main()
        return int(end.value.code or 0), out.getvalue(), errors.getvalue()

    return call


@pytest.fixture(scope="session")
def command() -> Callable[..., list[str]]:
    """The same command for a process of its own."""
    return lambda *arguments: [sys.executable, "-m", "crodobo", *map(str, arguments)]


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
