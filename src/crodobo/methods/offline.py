"""Base of the offline methods, which see the whole target in every epoch."""

from abc import abstractmethod

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.methods.base import Method
from crodobo.methods.checks import no_online_form
from crodobo.nn.learner import Learner
from crodobo.nn.network import Encoded


class Offline(Method):
    """A method that stores the target. It has no online form."""

    protocols = ("offline",)
    keeps_target = True

    @abstractmethod
    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation: ...

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        raise no_online_form(type(self))


def describe_all(learner: Learner, images: pixels.Images, size: int = 256) -> Encoded:
    """Features and logits of the whole target in prediction mode."""
    parts = [learner.describe(pixels.to_unit(batch)) for batch in pixels.in_batches(images, size)]
    return Encoded(torch.cat([part.features for part in parts]), torch.cat([part.logits for part in parts]))
