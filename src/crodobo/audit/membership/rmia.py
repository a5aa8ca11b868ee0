"""RMIA: does the model raise the probability of a sample above its usual value by more than those of other samples?

Zarifzadeh, Liu and Shokri, *Low-Cost High-Power Membership Inference Attacks*, ICML 2024.
"""

import numpy as np

from crodobo.audit.membership.inclusion import shadows_of


def rmia(log_probability: np.ndarray, gamma: float = 1.0) -> np.ndarray:
    """The share of other samples z that each sample x of each run dominates, by a factor of γ or more.

        score(x) = Pr_z [ (P(x | θ) / P(x)) / (P(z | θ) / P(z)) ≥ γ ]

    `log_probability` (runs × samples) is log P(x | θ) of the true label. P(x) is the mean over the runs outside the
    target's pair. Half of them streamed x: this is the online form. The samples z are the pool itself; the attacker
    does not know which of them are members.

    >>> rmia(np.log([[0.9, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]))[0].round(2).tolist()
    [1.0, 0.5, 0.5]
    """
    runs, samples = log_probability.shape
    scores = np.empty((runs, samples))
    for run, target in enumerate(log_probability.astype(np.float64)):
        others = log_probability[shadows_of(run, runs)].astype(np.float64)
        ratio = target - (np.logaddexp.reduce(others, axis=0) - np.log(len(others)))
        dominated = np.searchsorted(np.sort(ratio), ratio - np.log(gamma), side="right")
        scores[run] = (dominated - (gamma <= 1)) / max(1, samples - 1)  # if γ ≤ 1, x dominates itself too
    return scores
