"""ROC curves of attacks over all runs, with bootstrap intervals that account for correlated scores."""

from dataclasses import dataclass

import numpy as np

FALSE_ALARMS = (0.001, 0.01)  # false positive rates at which the true positive rate is reported
NUMBERS = ("auc", *(f"tpr_at_{rate}" for rate in FALSE_ALARMS))  # names of the estimates
ROUNDS = 500  # of the bootstrap


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """True and false positive rates from (0, 0) to (1, 1), one point for each distinct score."""

    false: np.ndarray
    true: np.ndarray

    @property
    def auc(self) -> float:
        """The probability that a member scores higher than a non-member. Equal scores count half."""
        return float(np.trapezoid(self.true, self.false))

    def true_at(self, rate: float) -> float:
        """The highest true positive rate at a false positive rate, interpolated where scores are equal."""
        return float(np.interp(rate, self.false, self.true))


class Scores:
    """Scores of all samples in all runs, sorted once. One threshold applies to all runs, as for a real attacker.

    A higher score means a more likely member. `members` says which samples each run streamed; both are runs × samples.
    """

    def __init__(self, scores: np.ndarray, members: np.ndarray) -> None:
        self.runs, self.samples = scores.shape
        order = np.argsort(-scores, axis=None, kind="stable")
        ranked = scores.ravel()[order]
        self._ends = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # of each run of equal scores
        self._members = members.ravel()[order]
        self._run, self._sample = np.divmod(order, self.samples)

    def curve(self, runs: np.ndarray | None = None, samples: np.ndarray | None = None) -> Curve:
        """The ROC curve. `runs` and `samples` are how often each counts; once by default."""
        weights = np.ones(len(self._members)) if runs is None else runs[self._run].astype(np.float64)
        if samples is not None:
            weights *= samples[self._sample]
        true = np.cumsum(np.where(self._members, weights, 0.0))[self._ends]
        false = np.cumsum(np.where(self._members, 0.0, weights))[self._ends]
        return Curve(np.insert(false / false[-1], 0, 0.0), np.insert(true / true[-1], 0, 0.0))

    def estimates(self, seed: int = 0, rounds: int = ROUNDS) -> dict[str, Estimate]:
        """AUC and true positive rates, each with its interval.

        Resamples pairs of runs and samples independently, with replacement: scores of one run share its weights, scores
        of one sample share its difficulty and its shadows, and the two runs of a pair have complementary members.
        Resampling single scores would give too narrow intervals; these are rather too wide.
        """
        random = np.random.default_rng(seed)
        drawn = []
        for _ in range(rounds):
            pairs = np.bincount(random.integers(self.runs // 2, size=self.runs // 2), minlength=self.runs // 2)
            samples = np.bincount(random.integers(self.samples, size=self.samples), minlength=self.samples)
            drawn.append(_numbers(self.curve(np.repeat(pairs, 2), samples)))
        low, high = np.percentile(drawn, [2.5, 97.5], axis=0).tolist()
        return dict(zip(NUMBERS, map(Estimate, _numbers(self.curve()), low, high), strict=True))


def _numbers(curve: Curve) -> list[float]:
    return [curve.auc, *(curve.true_at(rate) for rate in FALSE_ALARMS)]
