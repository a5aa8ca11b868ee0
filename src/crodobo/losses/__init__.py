"""Losses as pure functions of tensors, one per file."""

from crodobo.losses.adversarial import domain_confusion, ramp, reverse_gradient
from crodobo.losses.co_supervision import co_supervision
from crodobo.losses.coral import coral
from crodobo.losses.diversity import diversity
from crodobo.losses.entropy import entropies, entropy
from crodobo.losses.focal import focal
from crodobo.losses.margin_disparity import margin_disparity
from crodobo.losses.mixmatch import mixmatch, mixup, sharpen
from crodobo.losses.mmd import mmd

__all__ = [
    "co_supervision",
    "coral",
    "diversity",
    "domain_confusion",
    "entropies",
    "entropy",
    "focal",
    "margin_disparity",
    "mixmatch",
    "mixup",
    "mmd",
    "ramp",
    "reverse_gradient",
    "sharpen",
]
