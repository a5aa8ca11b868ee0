"""Points: a query in numbers, as the page and the metrics show it. They hold nothing of any sample."""

from typing import Any

import torch

from crodobo.ledger.entry import now
from crodobo.nn.layer_statistics import Moments
from crodobo.nn.learner import Learner
from crodobo.session.history import Rollback
from crodobo.session.processed import Processed

MAX_POINTS = 240  # queries on the page
MAX_RECEIPTS = 20


class Drift:
    """How far learners have moved from what they learned from the source.

    It is measured by the means of the BatchNorm layers, in standard deviations of the learners given at first. Every
    network has such a layer before its classifier, whatever its backbone.
    """

    def __init__(self, learners: list[Learner]) -> None:
        each = [moments for learner in learners for moments in learner.stream_statistics]
        self._before = [Moments(moments.mean.clone(), moments.var.clone()) for moments in each]

    def of(self, learners: list[Learner]) -> float:
        here = [moments for learner in learners for moments in learner.stream_statistics]
        pairs = zip(here, self._before, strict=True)
        means = [(after.mean - before.mean).abs() / (before.var + 1e-5).sqrt() for after, before in pairs]
        return float(torch.cat(means).mean())


def describe(processed: Processed, *, drift: float, rollback: Rollback | None) -> dict[str, Any]:
    """The point of a query. `rollback` is the last one before it."""
    prediction = processed.prediction
    probabilities = prediction.probabilities
    entropy = torch.special.entr(probabilities).sum(dim=1).mean()
    mix = torch.bincount(prediction.labels, minlength=probabilities.shape[1]) / len(probabilities)
    return prediction.numbers | {
        "query": processed.query,
        "receipt": processed.receipt,
        "time": now(),
        "seconds": round(processed.seconds, 4),
        "entropy": round(float(entropy), 4),
        "drift": round(drift, 4),
        "classes": [round(share, 4) for share in mix.tolist()],
        "restored": prediction.adaptation.restored is not None,
        "rolled_back": rollback is not None and rollback.query == processed.query - 1,
    }
