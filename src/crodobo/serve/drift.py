"""Drift: how far the learners have moved from what they learned from the source."""

import torch

from crodobo.nn.learner import Learner


class Drift:
    """Measures learners by the means of their BatchNorm layers, in standard deviations of the learners given here.

    Every network has such a layer before its classifier, whatever its backbone.
    """

    def __init__(self, learners: list[Learner]) -> None:
        self._before = [value.clone() for learner in learners for value in learner.statistics]

    def of(self, learners: list[Learner]) -> float:
        """How far these learners have moved."""
        statistics = [value for learner in learners for value in learner.statistics]
        triples = zip(statistics[::3], self._before[::3], self._before[1::3], strict=True)
        means = [(now - before).abs() / (variance + 1e-5).sqrt() for now, before, variance in triples]
        return float(torch.cat(means).mean())
