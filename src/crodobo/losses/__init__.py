"""Losses as pure functions of tensors, one a file."""

from crodobo.losses.co_supervision import co_supervision
from crodobo.losses.diversity import diversity
from crodobo.losses.entropy import entropy

__all__ = ["co_supervision", "diversity", "entropy"]
