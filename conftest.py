"""Every test and every example starts in the same state, whatever the shell or an earlier test left behind."""

import os
import shutil
import signal
import tempfile

import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the commands do; torch reads it when it loads

import torch

# Variables of the caller that change what commands print, where they keep files, or how they reach a local service.
IGNORED = ("COLUMNS", "FORCE_COLOR", "LINES", "MPLCONFIGDIR", "NO_COLOR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a home folder of their own; the workers of pytest-xdist inherit it."""
    if hasattr(config, "workerinput"):
        return
    home = tempfile.mkdtemp(prefix="crodobo-tests-")
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    for name in list(os.environ):
        if name in IGNORED or name.startswith("CRODOBO_") or name.lower().endswith("_proxy"):
            del os.environ[name]
    os.environ["HOME"] = home


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Runs before the fixtures of a test, so processes that a fixture starts inherit this state too."""
    os.umask(0o022)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell makes a command behind `&` ignore it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    torch.manual_seed(0)  # pytest-randomly seeds the other generators
