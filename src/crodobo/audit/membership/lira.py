"""LiRA: is the model's confidence in a sample closer to that of models trained with it, or without it?

Carlini, Chien, Nasr, Song, Terzis and Tramèr, *Membership Inference Attacks From First Principles*, IEEE S&P 2022.
"""

from typing import Literal

import numpy as np

from crodobo.audit.membership.inclusion import shadows_of

Variance = Literal["global", "sample"]
MANY = 64  # shadow runs that are enough to estimate each sample's own variance
LEAST = 1e-12  # lower bound of a variance


def usual_variance(runs: int) -> Variance:
    """One variance for all samples if there are few runs, as the authors advise."""
    return "sample" if runs >= MANY else "global"


def lira(confidence: np.ndarray, members: np.ndarray, variance: Variance = "global") -> np.ndarray:
    """Log-likelihood ratio of membership for each sample in each run, from the runs outside its pair.

    `confidence` (runs × samples) is the logit of the true label's probability. It is modelled as normal, with one mean
    in runs that streamed the sample and another in the rest; `members` (runs × samples) says which did. `variance` is
    estimated for each `sample`, or it is `global`: one for all members, and one for all non-members.

    >>> members = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], dtype=bool)
    >>> noise = np.array([[0.1, 0.2], [0.2, 0.0], [0.0, 0.1], [0.1, 0.1], [0.2, 0.0], [0.1, 0.2]])
    >>> scores = lira(5 * members + noise, members)
    >>> bool(scores[members].min() > scores[~members].max())
    True
    """
    scores = np.empty_like(confidence, dtype=np.float64)
    for run, target in enumerate(confidence):
        others = shadows_of(run, len(confidence))
        values, member = confidence[others].astype(np.float64), members[others]
        scores[run] = _log_density(target, values, member, variance) - _log_density(target, values, ~member, variance)
    return scores


def _log_density(target: np.ndarray, values: np.ndarray, chosen: np.ndarray, variance: Variance) -> np.ndarray:
    """Log-density of each target value under a normal fit to the chosen values of its sample, without the 2π term."""
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
