"""Which samples are in which shadow run: each pair of runs splits the samples into two random halves.

So every sample is in exactly half of the runs, and every run has half of the samples. An attack on a run does not use
that run's pair: of the other runs, exactly half streamed any given sample, whether it is a member or not, so the counts
reveal nothing.
"""

import numpy as np

from crodobo.errors import BadSettings

FEWEST = 4  # runs; an attack needs one pair besides the one it attacks


def check_runs(runs: int) -> None:
    """Refuse a number of runs that does not come in pairs."""
    if runs < FEWEST or runs % 2:
        problem = f"There cannot be {runs} shadow runs: they come in pairs, at least {FEWEST}."
        raise BadSettings(problem, "32 is a good number.", settings=("runs",))


def choose_pool(samples: int, size: int | None, seed: int) -> np.ndarray:
    """The indices of the target samples that shadow runs draw from, sorted: all, or `size` of them at random."""
    if size is None or size >= samples:
        return np.arange(samples)
    return np.sort(np.random.default_rng((seed, samples)).permutation(samples)[:size])


def draw_members(samples: int, run: int, seed: int) -> np.ndarray:
    """Which samples of the pool a shadow run streams, as booleans. Does not depend on the number of runs."""
    half = np.zeros(samples, dtype=bool)
    half[np.random.default_rng((seed, samples, run // 2)).permutation(samples)[: samples // 2]] = True
    return half if run % 2 == 0 else ~half


def shadows_of(run: int, runs: int) -> np.ndarray:
    """The runs that an attack on `run` learns from: all except its pair.

    >>> shadows_of(2, runs=6)
    array([0, 1, 4, 5])
    """
    return np.flatnonzero(np.arange(runs) // 2 != run // 2)
