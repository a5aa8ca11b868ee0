"""What the attacks find in the shadow runs of each method."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from crodobo.audit.membership.inclusion import draw_members
from crodobo.audit.membership.lira import lira, usual_variance
from crodobo.audit.membership.plan import ShadowPlan
from crodobo.audit.membership.rmia import rmia
from crodobo.audit.membership.roc import Estimate, Scores
from crodobo.audit.membership.signals import confidence, entropy, loss
from crodobo.audit.membership.work import load_scores, pool_of
from crodobo.data import Benchmark
from crodobo.errors import BadCheckpoint

Attack = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
ENOUGH = 16  # shadow runs of a measurement that can be leaned on
GRID = np.logspace(-4, 0, 81)  # false positive rates of the curves that are kept


def _lira(log_probabilities: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    return lira(confidence(log_probabilities, labels), members, usual_variance(len(members)))


ATTACKS: dict[str, Attack] = {
    "loss": lambda log_probabilities, labels, members: -loss(log_probabilities, labels),
    "entropy": lambda log_probabilities, labels, members: -entropy(log_probabilities),
    "LiRA": _lira,
    "RMIA": lambda log_probabilities, labels, members: rmia(-loss(log_probabilities, labels)),
}


@dataclass(frozen=True)
class Attacked:
    """How far one attack gets: AUC and true positive rates with intervals, and the curve on the grid."""

    estimates: dict[str, Estimate]
    curve: list[float]


@dataclass(frozen=True)
class Finding:
    """What the attacks come to for one method, and its accuracy on members and on the others."""

    method: str
    runs: int
    samples: int
    attacks: dict[str, Attacked]
    accuracy_on_members: float
    accuracy_on_others: float

    @property
    def strongest(self) -> str:
        """The attack with the highest AUC."""
        return max(self.attacks, key=lambda name: self.attacks[name].estimates["auc"].value)


def attack_all(method: str, log_probabilities: np.ndarray, labels: np.ndarray, members: np.ndarray) -> Finding:
    """Attack every run with the others as shadows.

    Parameters
    ----------
    method
        Its name.
    log_probabilities
        Runs × samples × classes: what each final model says.
    labels
        The samples' true classes.
    members
        Runs × samples: who was in which run; runs in complementary pairs.
    """
    attacks = {}
    for name, attack in ATTACKS.items():
        scores = Scores(attack(log_probabilities, labels, members), members)
        curve = scores.curve()
        attacks[name] = Attacked(scores.estimates(), [curve.true_at(rate) for rate in GRID])
    right = log_probabilities.argmax(axis=2) == labels
    return Finding(
        method=method,
        runs=len(members),
        samples=len(labels),
        attacks=attacks,
        accuracy_on_members=float(right[members].mean()),
        accuracy_on_others=float(right[~members].mean()),
    )


def find(plan: ShadowPlan, benchmark: Benchmark, method: str) -> Finding:
    """Attack a method whose shadow runs are all done."""
    settings = plan.settings(method)
    pool = pool_of(settings, len(benchmark.labels))
    stored = [load_scores(task) for task in plan.shadows if task.settings.method == method]
    scores: list[Tensor] = [each[0] for each in stored if each]
    members = np.stack([draw_members(len(pool), run, plan.seed) for run in range(plan.runs)])
    return attack_all(method, np.stack([each.numpy() for each in scores]), benchmark.labels.numpy()[pool], members)


def check_same_images(plan: ShadowPlan, benchmark: Benchmark) -> None:
    """Refuse to mix shadow runs of images that have changed since."""
    for task in plan.shadows:
        if (stored := load_scores(task)) and stored[1] != benchmark.stamp:
            raise BadCheckpoint(
                f"the images or their labels have changed since the run in {task.folder}; choose another --out, "
                "or --fresh"
            )
