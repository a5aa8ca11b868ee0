"""What the offline methods share: they go over the whole target again and again, and remember it in between."""

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.errors import BadSettings
from crodobo.methods.base import Method, Protocol
from crodobo.nn.learner import Encoded, Learner


class Offline(Method):
    """A method that needs the target at hand; it has no online form."""

    protocols: ClassVar[tuple[Protocol, ...]] = ("offline",)
    keeps_target = True

    @abstractmethod
    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation: ...

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        raise BadSettings(f"{self.name} goes over the whole target again and again, so it has no online form")


def describe_all(learner: Learner, images: pixels.Images, size: int = 256) -> Encoded:
    """Features and logits of the whole target, as at prediction."""
    parts = [learner.describe(pixels.to_unit(batch)) for batch in pixels.in_batches(images, size)]
    return Encoded(torch.cat([part.features for part in parts]), torch.cat([part.logits for part in parts]))
