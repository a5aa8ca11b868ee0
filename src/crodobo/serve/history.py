"""What the page shows of the last queries: numbers, nothing of any sample."""

from typing import Any

import torch

from crodobo.ledger.entry import now
from crodobo.session.processed import Processed

MAX_POINTS = 240  # queries on the page
MAX_RECEIPTS = 20


def describe(processed: Processed, *, drift: float, adapted: bool) -> dict[str, Any]:
    """A query in numbers, as the page and the metrics show it."""
    prediction = processed.prediction
    probabilities, adaptation = prediction.probabilities, prediction.adaptation
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
        "adapted": adapted,
        "held": adaptation.held,
        "restored": adaptation.restored is not None,
    }
