"""Attacks and their figures, compared with independent derivations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crodobo.audit.membership.findings import ATTACKS, attack_all
from crodobo.audit.membership.inclusion import check_runs, choose_pool, draw_members, shadows_of
from crodobo.audit.membership.lira import lira, usual_variance
from crodobo.audit.membership.report import in_words
from crodobo.audit.membership.rmia import rmia
from crodobo.audit.membership.roc import Curve, Scores
from crodobo.audit.membership.signals import confidence, entropy, loss
from crodobo.errors import BadSettings

RUNS, SAMPLES = 16, 60


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture
def members() -> np.ndarray:
    return all_members(RUNS, SAMPLES)


def all_members(runs: int, samples: int, seed: int = 0) -> np.ndarray:
    return np.stack([draw_members(samples, run, seed) for run in range(runs)])


# Members of each run


@given(st.integers(2, 20), st.integers(2, 50), st.integers(0, 5))
def test_every_sample_is_in_half_of_the_runs_and_of_an_attacks_shadows(pairs: int, samples: int, seed: int) -> None:
    members = all_members(2 * pairs, samples, seed)
    assert (members.sum(axis=0) == pairs).all()
    assert set(members.sum(axis=1)) <= {samples // 2, samples - samples // 2}
    for run in range(2 * pairs):
        others = shadows_of(run, 2 * pairs)
        assert run not in others
        assert (members[others].sum(axis=0) == pairs - 1).all()


def test_pairs_are_random_and_repeatable() -> None:
    assert (draw_members(50, 4, seed=1) == draw_members(50, 4, seed=1)).all()
    drawn = {draw_members(50, run, seed).tobytes() for run in range(6) for seed in (0, 1)}
    assert len(drawn) == 12


def test_a_pool_is_sorted_and_has_no_repeats() -> None:
    pool = choose_pool(100, 30, seed=0)
    assert len(set(pool.tolist())) == 30
    assert pool.tolist() == sorted(pool.tolist())
    assert choose_pool(100, None, seed=0).tolist() == choose_pool(100, 200, seed=0).tolist() == list(range(100))


@pytest.mark.parametrize("runs", [0, 2, 15])
def test_odd_or_too_few_runs_are_refused(runs: int) -> None:
    with pytest.raises(BadSettings, match=f"There cannot be {runs} shadow runs: they come in pairs"):
        check_runs(runs)


# Signals


def test_signals_by_hand() -> None:
    answers = np.log([[[0.7, 0.2, 0.1], [0.25, 0.25, 0.5]]])
    labels = np.array([0, 1])
    assert loss(answers, labels) == pytest.approx(-np.log([[0.7, 0.25]]))
    assert confidence(answers, labels) == pytest.approx(np.log([[0.7 / 0.3, 0.25 / 0.75]]))
    by_hand = [-sum(p * math.log(p) for p in answer) for answer in ((0.7, 0.2, 0.1), (0.25, 0.25, 0.5))]
    assert entropy(answers)[0] == pytest.approx(by_hand)


def test_the_logit_of_a_probability_near_one_is_exact() -> None:
    answer = np.array([[-1e-30, -40.0]], dtype=np.float32)  # 1 − p is e⁻⁴⁰, but 1 − exp(log p) rounds to 0
    assert confidence(answer, np.array([0])) == pytest.approx([40.0])


# LiRA


def test_each_sample_has_its_own_variance_only_if_there_are_many_runs() -> None:
    assert (usual_variance(32), usual_variance(128)) == ("global", "sample")


@pytest.mark.parametrize("variance", ["global", "sample"])
def test_lira_is_a_ratio_of_normal_densities(variance: str, members: np.ndarray, random: np.random.Generator) -> None:
    """Compute each score with the density written out, without its own pair."""
    values = random.normal(size=(RUNS, SAMPLES)) * random.uniform(0.5, 2, size=SAMPLES) + 2 * members
    found = lira(values, members, variance)  # type: ignore[arg-type]

    def density(value: float, mean: float, spread: float) -> float:
        return math.log(math.exp(-((value - mean) ** 2) / (2 * spread)) / math.sqrt(2 * math.pi * spread))

    for run in (0, 7):
        others = [other for other in range(RUNS) if other // 2 != run // 2]
        groups = [
            [[values[other, sample] for other in others if members[other, sample] == met] for sample in range(SAMPLES)]
            for met in (True, False)
        ]
        common = [sum(np.var(each, ddof=1) for each in group) / SAMPLES for group in groups]  # all groups have one size
        for sample in range(0, SAMPLES, 7):
            logs = [
                density(
                    values[run, sample],
                    float(np.mean(group[sample])),
                    common[number] if variance == "global" else float(np.var(group[sample], ddof=1)),
                )
                for number, group in enumerate(groups)
            ]
            assert found[run, sample] == pytest.approx(logs[0] - logs[1])


def test_an_attack_uses_neither_the_run_nor_its_pair(members: np.ndarray, random: np.random.Generator) -> None:
    values = random.normal(size=(RUNS, SAMPLES))
    changed = values.copy()
    changed[5] += 100
    for attack in (lambda each: lira(each, members), lambda each: rmia(-np.abs(each))):
        assert (attack(values)[4] == attack(changed)[4]).all()
        assert (attack(values)[6] != attack(changed)[6]).any()


@pytest.mark.parametrize("gap", [0.0, 1.0, 2.0])
def test_lira_is_close_to_the_best_possible_auc(gap: float, random: np.random.Generator) -> None:
    """Members and others are normal with means `gap` apart: no test has an AUC above Φ(gap / √2)."""
    members = all_members(64, 400)
    values = random.normal(size=members.shape) + gap * members + 3 * random.normal(size=400)
    best = 0.5 * (1 + math.erf(gap / 2))
    assert Scores(lira(values, members), members).curve().auc == pytest.approx(best, abs=0.015)


# RMIA


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_rmia_counts_the_samples_that_are_dominated(gamma: float, random: np.random.Generator) -> None:
    """Compare all pairs (x, z)."""
    probabilities = random.uniform(0.05, 1, size=(6, 12))
    found = rmia(np.log(probabilities), gamma)
    for run in range(6):
        usual = [np.mean([probabilities[o, s] for o in range(6) if o // 2 != run // 2]) for s in range(12)]
        ratio = probabilities[run] / usual
        for x in range(12):
            dominated = [ratio[x] / ratio[z] >= gamma for z in range(12) if z != x]
            assert found[run, x] == pytest.approx(np.mean(dominated))


# Curves and intervals


def brute_force(scores: np.ndarray, members: np.ndarray) -> float:
    differences = scores[members][:, None] - scores[~members][None, :]
    return float((differences > 0).mean() + 0.5 * (differences == 0).mean())


@given(st.integers(0, 1000))
def test_auc_counts_pairs_and_equal_pairs_half(seed: int) -> None:
    random = np.random.default_rng(seed)
    members = all_members(4, 9, seed)
    scores = random.integers(0, 4, size=members.shape).astype(float)
    assert Scores(scores, members).curve().auc == pytest.approx(brute_force(scores, members))


def test_weights_of_a_curve_equal_repeated_scores(members: np.ndarray, random: np.random.Generator) -> None:
    scores = random.integers(0, 50, size=members.shape) + 3.0 * members
    runs, samples = random.integers(0, 3, size=RUNS), random.integers(0, 3, size=SAMPLES)
    rows, columns = np.repeat(np.arange(RUNS), runs), np.repeat(np.arange(SAMPLES), samples)
    weighted = Scores(scores, members).curve(runs, samples)
    repeated = Scores(scores[rows][:, columns], members[rows][:, columns]).curve()
    assert weighted.auc == pytest.approx(repeated.auc)
    assert weighted.true_at(0.07) == pytest.approx(repeated.true_at(0.07))


def test_true_positive_rates_by_hand() -> None:
    """One of 8 non-members ranks below 4 members, the next below 6."""
    members = np.array([1, 1, 1, 1, 0, 1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0], dtype=bool)
    curve = Scores(-np.arange(16.0)[None], members[None]).curve()
    rates = [curve.true_at(rate) for rate in (0.0, 0.1, 1 / 8, 0.2, 2 / 8, 1.0)]
    assert rates == pytest.approx([0.5, 0.5, 0.75, 0.75, 1.0, 1.0])


def test_equal_scores_are_no_better_than_guessing(members: np.ndarray) -> None:
    estimates = Scores(np.zeros(members.shape), members).estimates(rounds=20)
    assert [each.value for each in estimates.values()] == pytest.approx([0.5, 0.001, 0.01])
    assert estimates["auc"].low == pytest.approx(0.5)


def test_intervals_are_wider_if_scores_of_a_run_are_correlated(random: np.random.Generator) -> None:
    """The luck of one pair of runs affects a hundred samples."""
    members = all_members(16, 100)
    noise = random.normal(size=members.shape)
    leak = np.repeat(random.normal(size=8), 2)[:, None] * members
    alone, together = (Scores(noise + each, members).estimates(rounds=200)["auc"] for each in (0 * leak, 2 * leak))
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_intervals_nearly_always_cover_the_truth() -> None:
    """Of 60 intervals of random scores, about 57 should cover 0.5. Wide intervals cover it more often."""
    covered = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        members = all_members(16, 40, seed)
        scores = random.normal(size=members.shape) + random.normal(size=40) + random.normal(size=(16, 1))
        auc = Scores(scores, members).estimates(rounds=100)["auc"]
        covered += auc.low <= 0.5 <= auc.high
    assert covered >= 54


def test_every_attack_detects_a_leak_and_only_a_leak(random: np.random.Generator) -> None:
    members, labels = all_members(16, 120), random.integers(0, 3, size=120)
    logits = random.normal(size=(16, 120, 3))
    for gap, leaks in ((0.0, False), (3.0, True)):
        answers = logits + gap * members[..., None] * (np.arange(3) == labels[:, None])
        answers -= np.logaddexp.reduce(answers, axis=2, keepdims=True)
        finding = attack_all("any", answers, labels, members)
        assert set(finding.attacks) == set(ATTACKS)
        lows = [attacked.estimates["auc"].low for attacked in finding.attacks.values()]
        assert all((low > 0.5) == leaks for low in lows)
        assert (finding.accuracy_on_members > finding.accuracy_on_others + 0.2) == leaks
        assert in_words(finding).endswith(
            "The weights reveal membership." if leaks else "indistinguishable from guessing."
        )


def test_a_model_that_never_changed_is_exactly_at_chance(members: np.ndarray, random: np.random.Generator) -> None:
    logits = random.normal(size=(SAMPLES, 3)).astype(np.float32)
    answers = np.stack([logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)] * RUNS)
    finding = attack_all("frozen", answers, random.integers(0, 3, size=SAMPLES), members)
    for attacked in finding.attacks.values():
        assert [each.value for each in attacked.estimates.values()] == pytest.approx([0.5, 0.001, 0.01])
    assert in_words(finding).endswith(
        "identifies 0.10 % of the members (0.10 to 0.10; guessing: 0.10). This is indistinguishable from guessing."
    )


def test_a_curve_goes_from_0_to_1() -> None:
    curve = Curve(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.8, 1.0]))
    assert [curve.true_at(0.0), curve.true_at(1.0)] == pytest.approx([0.0, 1.0])
    assert curve.auc == pytest.approx(0.65)
