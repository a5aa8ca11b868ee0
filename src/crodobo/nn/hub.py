"""Pretrained weights through the libraries' own hubs, and a clear sentence where there is no network."""

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
        with no_retries_without_a_network():
            return make()
    except Exception as error:  # each hub and transport has its own; all mean that the weights did not come
        raise BadWeights(
            f"the pretrained weights of {name} could not be had ({type(error).__name__}); without a network, "
            "fetch the file elsewhere and pass it with --weights FILE, or start from random weights (--random)"
        ) from error


@contextmanager
def no_retries_without_a_network() -> Iterator[None]:
    """Where the hub's host is not even known, look in its cache alone instead of trying for a minute."""
    before = huggingface_hub.constants.HF_HUB_OFFLINE
    if not _knows(urlsplit(huggingface_hub.constants.ENDPOINT).hostname):
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = before


def _knows(host: str | None) -> bool:
    if getproxies():  # the proxy looks names up
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
