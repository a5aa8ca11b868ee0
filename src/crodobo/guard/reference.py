"""Reference: the learners as they were before the stream. They are never adapted to it.

The reference always normalises with the source's statistics. What it sees in one query can therefore be compared with
what it saw in any other: it is a fixed frame in which a stream moves.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from crodobo.engine import Engine
from crodobo.nn.learner import Learner
from crodobo.nn.normalisation import batch_norms
from crodobo.storage.tensors import numbered, with_prefix


class Look(NamedTuple):
    """What the reference sees in some samples."""

    probabilities: list[Tensor]  # of each learner
    features: Tensor  # of all learners
    place: list[Tensor]  # the mean of the samples at the input of each BatchNorm layer of the first learner


class Reference:
    """Frozen copies of the learners."""

    def __init__(self, learners: list[Learner], prior: Tensor) -> None:
        self.learners = [learner.frozen_copy() for learner in learners]
        self._norms = batch_norms(self.learners[0].network)
        self.prior = prior
        self._measure()

    def _measure(self) -> None:
        """How far the farthest class lies from the source in each layer: the unit of distances."""
        target = self.learners[0].target
        assert target
        self.unit = [each.burst(self.prior) for each in target.layers]

    @torch.no_grad()
    def look(self, images: Tensor, engine: Engine) -> Look:
        """Predict some images, each by itself."""
        place: list[Tensor] = []

        def note(layer: _BatchNorm, inputs: tuple[Tensor, ...]) -> None:
            place.append(inputs[0].mean(dim=(0, *range(2, inputs[0].dim()))))

        hooks = [layer.register_forward_pre_hook(note) for layer in self._norms]
        try:
            seen = engine.map(lambda learner: learner.describe(images, "running"), self.learners)
        finally:
            for hook in hooks:
                hook.remove()
        features = torch.cat([each.features for each in seen], dim=1)
        return Look([each.probabilities for each in seen], features, place)

    @property
    def home(self) -> list[Tensor]:
        """The place of the source."""
        return [layer.running_mean for layer in self._norms if layer.running_mean is not None]

    def distance(self, place: list[Tensor], other: list[Tensor]) -> float:
        """How far two places are apart: the median over the layers.

        The unit is the distance between the source and its farthest class. A distance well above 1 is more than any mix
        of classes can explain: the domains differ.
        """
        each = [
            float(((here - there).square() / (layer.running_var + layer.eps)).mean()) / max(unit, 1e-6)
            for here, there, layer, unit in zip(place, other, self._norms, self.unit, strict=True)
            if layer.running_var is not None
        ]
        return float(torch.tensor(each or [0.0]).median())

    def state(self) -> dict[str, Tensor]:
        """The weights by name."""
        return numbered([learner.state() for learner in self.learners])

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        for number, learner in enumerate(self.learners):
            learner.load_state(with_prefix(f"learners.{number}.", state))
        self._measure()
