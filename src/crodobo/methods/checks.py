"""What a method cannot do, as errors that say so before anything is loaded."""

from typing import TYPE_CHECKING

from crodobo.config import MethodSettings
from crodobo.errors import BadSettings

if TYPE_CHECKING:
    from crodobo.methods.base import Method


def check_burning(method: "type[Method]", settings: MethodSettings) -> None:
    """Refuse a method that keeps target data where burning is on."""
    if method.keeps_target and settings.burn != "off":
        raise BadSettings(
            f"{method.name} keeps target data, and burning is on.",
            "Choose a method that keeps nothing, or turn burning off if the target may be stored.",
            settings=("method", "burn"),
        )


def check_runs_online(method: "type[Method]", settings: MethodSettings) -> None:
    """Refuse a method that cannot run on a stream, before anything is loaded."""
    if "online" not in method.protocols:
        raise no_online_form(method)
    check_burning(method, settings)


def no_online_form(method: "type[Method]") -> BadSettings:
    """The error for an offline method on a stream."""
    return BadSettings(
        f"{method.name} needs the whole target again and again, so it has no online form.",
        "Choose an online method, or run this one in a comparison with the offline protocol.",
        settings=("method",),
    )
