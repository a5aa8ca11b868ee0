"""RMIA: does the target's probability of a sample exceed its usual one by more than those of other samples do?

Zarifzadeh, Liu and Shokri, *Low-Cost High-Power Membership Inference Attacks*, ICML 2024.
"""

import numpy as np

from crodobo.audit.membership.inclusion import shadows_of


def rmia(log_probability: np.ndarray, gamma: float = 1.0) -> np.ndarray:
    """Share of other samples z that each sample x of each run dominates.

        score(x) = Pr_z [ (P(x | θ) / P(x)) / (P(z | θ) / P(z)) ≥ γ ]

    P(x) is the mean over the runs outside the target's pair, half of which met x: the online form. The population of
    z is the pool itself, of which the attacker does not know who was met.

    Parameters
    ----------
    log_probability
        Runs × samples: the logarithm of the true label's probability.
    gamma
        By how much x has to exceed z.

    Examples
    --------
    >>> rmia(np.log([[0.9, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]))[0]
    array([1. , 0.5, 0.5])
    """
    runs, samples = log_probability.shape
    scores = np.empty((runs, samples))
    for run, target in enumerate(log_probability.astype(np.float64)):
        others = log_probability[shadows_of(run, runs)].astype(np.float64)
        ratio = target - (np.logaddexp.reduce(others, axis=0) - np.log(len(others)))
        dominated = np.searchsorted(np.sort(ratio), ratio - np.log(gamma), side="right")
        scores[run] = (dominated - (gamma <= 1)) / max(1, samples - 1)  # itself it dominates where γ is not above 1
    return scores
