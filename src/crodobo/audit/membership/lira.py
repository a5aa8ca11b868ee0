"""LiRA: is the target's confidence in a sample more like that of models which met it, or of models which did not?

Carlini, Chien, Nasr, Song, Terzis and Tramèr, *Membership Inference Attacks From First Principles*, IEEE S&P 2022.
"""

from typing import Literal

import numpy as np

from crodobo.audit.membership.inclusion import shadows_of

Variance = Literal["global", "sample"]
MANY = 64  # shadow runs from which on a sample's own variance is known well enough
LEAST = 1e-12  # variance of a confidence that never moves


def usual_variance(runs: int) -> Variance:
    """One variance for all samples while there are few runs, as the authors advise.

    >>> usual_variance(32), usual_variance(128)
    ('global', 'sample')
    """
    return "sample" if runs >= MANY else "global"


def lira(confidence: np.ndarray, members: np.ndarray, variance: Variance = "global") -> np.ndarray:
    """Log-likelihood ratio of membership for each sample in each run, attacked with the runs outside its pair.

    Confidences of a sample are taken to be normal, around one mean in runs that met it and another in those that did
    not.

    Parameters
    ----------
    confidence
        Runs × samples: the logit of the true label's probability.
    members
        Runs × samples: who was in which run.
    variance
        Estimated from each sample's own values, or `global`: one for all samples that were met, one for all that were
        not.

    Examples
    --------
    >>> members = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], dtype=bool)
    >>> noise = np.array([[0.1, 0.2], [0.2, 0.0], [0.0, 0.1], [0.1, 0.1], [0.2, 0.0], [0.1, 0.2]])
    >>> scores = lira(5 * members + noise, members)
    >>> bool(scores[members].min() > scores[~members].max())
    True
    """
    scores = np.empty_like(confidence, dtype=np.float64)
    for run, target in enumerate(confidence):
        others = shadows_of(run, len(confidence))
        values, met = confidence[others].astype(np.float64), members[others]
        scores[run] = _log_density(target, values, met, variance) - _log_density(target, values, ~met, variance)
    return scores


def _log_density(target: np.ndarray, values: np.ndarray, chosen: np.ndarray, variance: Variance) -> np.ndarray:
    """Of each sample's target value under the normal distribution of its chosen values; 2π left out."""
    count = chosen.sum(axis=0)
    mean = np.where(chosen, values, 0).sum(axis=0) / count
    squares = np.where(chosen, (values - mean) ** 2, 0).sum(axis=0)
    if variance == "global":
        spread = np.full_like(mean, squares.sum() / max(1, (count - 1).sum()))
    else:
        spread = squares / np.maximum(1, count - 1)
    spread = np.maximum(spread, LEAST)
    density: np.ndarray = -0.5 * np.log(spread) - (target - mean) ** 2 / (2 * spread)
    return density
