"""Pretrained weights from the libraries' own hubs, with a clear error if there is no network."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

import huggingface_hub.constants
from torch import nn

from crodobo.errors import BadWeights


def download(make: Callable[[], nn.Module], name: str) -> nn.Module:
    """Make a network whose weights come from a hub, or from the hub's cache on this machine."""
    try:
        with no_retries_without_network():
            return make()
    except Exception as error:  # each hub has its own errors; all mean that the weights did not come
        raise BadWeights(
            f"The pretrained weights of {name} are not available ({type(error).__name__}).",
            "Connect to the network, give a weights file, or start from random weights.",
            settings=("weights", "pretrained"),
        ) from error


@contextmanager
def no_retries_without_network() -> Iterator[None]:
    """Use only the hub's cache if its host name cannot be resolved. Otherwise the hub retries for a minute."""
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    if not _resolves(urlsplit(huggingface_hub.constants.ENDPOINT).hostname):
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


def _resolves(host: str | None) -> bool:
    if getproxies():  # the proxy resolves names
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
