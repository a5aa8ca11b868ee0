"""Pretrained weights without a network."""

import socket

import huggingface_hub.constants as hub_settings
import pytest
from torch import nn

from crodobo.errors import BadWeights
from crodobo.nn import hub


def no_such_host(*_: object) -> None:
    raise socket.gaierror("Name or service not known")


@pytest.fixture(autouse=True)
def _without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    monkeypatch.setattr(hub, "getproxies", dict)


def test_without_a_network_only_the_cache_is_used() -> None:
    seen = []

    def make() -> nn.Module:
        seen.append(hub_settings.HF_HUB_OFFLINE)
        return nn.Identity()

    before = hub_settings.HF_HUB_OFFLINE
    hub.download(make, "resnet18")
    assert seen == [True]
    assert before == hub_settings.HF_HUB_OFFLINE


def test_behind_a_proxy_names_need_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "proxy:3128"})
    with hub.no_retries_without_network():
        assert not hub_settings.HF_HUB_OFFLINE


def test_a_failed_download_is_reported() -> None:
    def make() -> nn.Module:
        raise OSError("no route")

    with pytest.raises(BadWeights, match="give a weights file"):
        hub.download(make, "resnet18")
