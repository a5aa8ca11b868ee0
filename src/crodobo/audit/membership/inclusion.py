"""Who is in which shadow run: runs come in pairs, and each pair parts the samples into two random halves.

So every sample is in exactly half of the runs, and every run has half of the samples. An attack on one run leaves its
whole pair out of what it learns from: each sample is then in exactly half of the other runs too, whether it is a
member or not, and nothing can be read off the counts.
"""

import numpy as np

from crodobo.errors import BadSettings

FEWEST = 4  # runs with which an attack has one pair to learn from besides its own; two are no measurement


def check_runs(runs: int) -> None:
    """Refuse a number of runs that does not come in pairs."""
    if runs < FEWEST or runs % 2:
        raise BadSettings(f"--runs cannot be {runs}: shadow runs come in pairs, {FEWEST} at least; 32 is a good number")


def choose_pool(samples: int, size: int | None, seed: int) -> np.ndarray:
    """Numbers of the target samples that shadow runs draw from: all of them, or `size` at random.

    >>> choose_pool(10, 4, seed=0)
    array([1, 4, 6, 7])
    """
    if size is None or size >= samples:
        return np.arange(samples)
    return np.sort(np.random.default_rng((seed, samples)).permutation(samples)[:size])


def draw_members(samples: int, run: int, seed: int) -> np.ndarray:
    """Which samples of the pool a shadow run streams, as booleans. Does not depend on how many runs there are.

    >>> first, second = draw_members(6, 0, seed=0), draw_members(6, 1, seed=0)
    >>> int(first.sum()), bool((first ^ second).all())
    (3, True)
    """
    half = np.zeros(samples, dtype=bool)
    half[np.random.default_rng((seed, samples, run // 2)).permutation(samples)[: samples // 2]] = True
    return half if run % 2 == 0 else ~half


def shadows_of(run: int, runs: int) -> np.ndarray:
    """The runs that an attack on `run` learns from: all but its pair.

    >>> shadows_of(2, runs=6)
    array([0, 1, 4, 5])
    """
    return np.flatnonzero(np.arange(runs) // 2 != run // 2)
