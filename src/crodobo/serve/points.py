"""Points: a query in numbers, as the page and the metrics show it. They hold nothing of any sample."""

from typing import Any

import torch
from torch import Tensor

from crodobo.core.prediction import Reason
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
    """The point of a whole query, for administrators. `rollback` is the last one before it."""
    prediction = processed.prediction
    return (
        prediction.numbers
        | _figures(prediction.probabilities, processed)
        | {
            "drift": round(drift, 4),
            "restored": prediction.adaptation.restored is not None,
            "rolled_back": rollback is not None and rollback.query == processed.query - 1,
        }
    )


def describe_own(probabilities: Tensor, processed: Processed, reason: Reason | None) -> dict[str, Any]:
    """The point of one request, for its own client: it has only figures of the client's own images."""
    others = dict.fromkeys(("agreement", "kept", "drift"))  # these are known of whole queries only
    return others | _figures(probabilities, processed) | {"predicted_only": reason}


def _figures(probabilities: Tensor, processed: Processed) -> dict[str, Any]:
    entropy = torch.special.entr(probabilities).sum(dim=1).mean()
    mix = torch.bincount(probabilities.argmax(dim=1), minlength=probabilities.shape[1]) / len(probabilities)
    return {
        "query": processed.query,
        "receipt": processed.receipt,
        "time": now(),
        "seconds": round(processed.seconds, 4),
        "samples": len(probabilities),
        "confidence": round(float(probabilities.amax(dim=1).mean()), 4),
        "entropy": round(float(entropy), 4),
        "classes": [round(share, 4) for share in mix.tolist()],
    }
