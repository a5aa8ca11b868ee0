"""Attack the shadow runs of each method, and summarise how well the attacks do."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from crodobo.audit.membership.inclusion import draw_members
from crodobo.audit.membership.lira import lira, usual_variance
from crodobo.audit.membership.plan import ShadowPlan
from crodobo.audit.membership.rmia import rmia
from crodobo.audit.membership.roc import Estimate, Scores
from crodobo.audit.membership.signals import confidence, entropy, loss
from crodobo.audit.membership.work import load_scores, pool_of, refusal
from crodobo.data import Benchmark

Attack = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
ENOUGH = 16  # shadow runs for a reliable measurement
GRID = np.logspace(-4, 0, 81)  # false positive rates of the stored curves


def _lira(log_probabilities: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    return lira(confidence(log_probabilities, labels), members, usual_variance(len(members)))


ATTACKS: dict[str, Attack] = {
    "loss": lambda log_probabilities, labels, members: -loss(log_probabilities, labels),
    "entropy": lambda log_probabilities, labels, members: -entropy(log_probabilities),
    "LiRA": _lira,
    "RMIA": lambda log_probabilities, labels, members: rmia(-loss(log_probabilities, labels)),
}


@dataclass(frozen=True)
class AttackResult:
    """The success of one attack: AUC and true positive rates with intervals, and the curve on the grid."""

    estimates: dict[str, Estimate]
    curve: list[float]


@dataclass(frozen=True)
class Finding:
    """The success of all attacks on one method, and its accuracy on members and non-members."""

    method: str
    runs: int
    samples: int
    attacks: dict[str, AttackResult]
    accuracy_on_members: float
    accuracy_on_others: float

    @property
    def strongest(self) -> str:
        """The attack with the highest AUC."""
        return max(self.attacks, key=lambda name: self.attacks[name].estimates["auc"].value)


def attack_all(method: str, log_probabilities: np.ndarray, labels: np.ndarray, members: np.ndarray) -> Finding:
    """Attack every run, with the other runs as shadows.

    `log_probabilities` (runs × samples × classes) are the outputs of each final model, `labels` the true classes.
    `members` (runs × samples) says which samples each run streamed; runs come in complementary pairs.
    """
    attacks = {}
    for name, attack in ATTACKS.items():
        scores = Scores(attack(log_probabilities, labels, members), members)
        curve = scores.curve()
        attacks[name] = AttackResult(scores.estimates(), [curve.true_at(rate) for rate in GRID])
    right = log_probabilities.argmax(axis=2) == labels
    on_members, on_others = float(right[members].mean()), float(right[~members].mean())
    return Finding(method, len(members), len(labels), attacks, on_members, on_others)


def find(plan: ShadowPlan, benchmark: Benchmark, method: str) -> Finding:
    """Attack a method whose shadow runs are all finished."""
    pool = pool_of(plan.settings(method), len(benchmark.labels))
    stored = [load_scores(task) for task in plan.shadows if task.settings.method == method]
    scores = np.stack([each[0].numpy() for each in stored if each])
    members = np.stack([draw_members(len(pool), run, plan.seed) for run in range(plan.runs)])
    return attack_all(method, scores, benchmark.labels.numpy()[pool], members)


def check_same_images(plan: ShadowPlan, benchmark: Benchmark) -> None:
    """Refuse to mix these images with shadow runs of other images."""
    for task in plan.shadows:
        if (stored := load_scores(task)) and stored[1] != benchmark.stamp:
            raise refusal(f"The images or their labels changed since the run in {task.folder}.")
