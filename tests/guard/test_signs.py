"""The signs by which the watch judges a query: its classes, its place, and the learners' agreement."""

import pytest
import torch
from torch import Generator, Tensor

from crodobo.config import LearnerSettings
from crodobo.core.source import Source
from crodobo.engine import Sequence
from crodobo.guard.agreement import Agreement, worse
from crodobo.guard.mixedness import Spread, UsualClasses
from crodobo.guard.reference import Reference
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

EVEN = torch.full((4,), 0.25)
ENGINE = Sequence(threads=1)


def certain(labels: Tensor, classes: int = 4) -> Tensor:
    return torch.eye(classes)[labels]


def drawn(count: int, seed: int, classes: int = 4) -> Tensor:
    return torch.randint(classes, (count,), generator=Generator().manual_seed(seed))


# Classes


@pytest.mark.parametrize(("classes", "narrowness"), [(1, 1.0), (2, 2 / 3), (3, 1 / 3), (4, 0.0)])
def test_narrowness_counts_the_missing_classes(classes: int, narrowness: float) -> None:
    labels = torch.arange(4000) % classes
    assert UsualClasses(EVEN).narrowness(certain(labels)) == pytest.approx(narrowness, abs=0.01)


def test_a_source_that_is_not_even_expects_no_even_query() -> None:
    prior = torch.tensor([0.7, 0.1, 0.1, 0.1])
    labels = torch.multinomial(prior, 4000, replacement=True, generator=Generator().manual_seed(0))
    assert UsualClasses(prior).narrowness(certain(labels)) < 0.1
    assert UsualClasses(prior).narrowness(certain(torch.zeros(64).long())) == 1


def test_short_mixed_queries_do_not_seem_narrow_on_average() -> None:
    classes = UsualClasses(EVEN)
    share = [classes.narrowness(certain(drawn(16, seed))) for seed in range(50)]
    assert sum(share) / 50 < 0.2
    assert classes.narrowness(certain(drawn(1, 0))) == 0


def test_a_class_that_is_always_predicted_too_often_is_discounted() -> None:
    classes = UsualClasses(EVEN)
    biased = 0.6 * torch.eye(4)[0] + 0.4 * certain(torch.arange(64) % 4)
    before = classes.narrowness(biased)
    for _ in range(100):
        classes.add(biased, 64)
    assert classes.narrowness(biased) < before - 0.2
    rows = classes.unbiased(biased)
    torch.testing.assert_close(rows.sum(dim=1), torch.ones(64))
    assert rows[:, 0].mean() < biased[:, 0].mean()
    classes.clear()
    assert classes.narrowness(biased) == pytest.approx(before)


def test_a_short_query_moves_the_usual_classes_less() -> None:
    long, short = UsualClasses(EVEN), UsualClasses(EVEN)
    long.add(certain(torch.zeros(16).long()), 64)
    short.add(certain(torch.zeros(8).long()), 8)
    assert float(long.usual[0] - 0.25) == pytest.approx(8 * float(short.usual[0] - 0.25), rel=1e-3)


def test_guesses_are_blind_and_certainty_is_not() -> None:
    classes = UsualClasses(EVEN)
    assert classes.blindness(torch.full((8, 4), 0.25)) == pytest.approx(1)
    assert classes.blindness(certain(drawn(8, 0))) == pytest.approx(0)


def correlated(count: int, generator: Generator, features: int = 60, sources: int = 6) -> Tensor:
    """Samples whose features are mixtures of a few independent numbers, as those of a network are."""
    mixing = torch.randn(sources, features, generator=Generator().manual_seed(0))
    return torch.randn(count, sources, generator=generator) @ mixing


@pytest.mark.parametrize("size", [8, 16, 64])
def test_the_chance_of_random_parts_is_spread_evenly(size: int) -> None:
    """The test holds what it promises on features that depend on each other: a chance of 5 % comes in 5 % of cases."""
    generator, chances = Generator().manual_seed(size), []
    spread = Spread(60)
    for _ in range(300):
        query = correlated(size, generator)
        if spread.samples >= 64:
            chances.append(spread.chance(query))
        spread.add(query, seen=False)
    found = torch.tensor(chances)
    assert 0.35 < float(found.median()) < 0.75
    assert float((found < 0.05).float().mean()) < 0.1
    assert float((found < 0.001).float().mean()) < 0.01


def test_a_feature_that_was_constant_so_far_decides_nothing() -> None:
    spread, generator = Spread(61), Generator().manual_seed(0)
    for number in range(6):
        constant = torch.full((64, 1), 0.005 * (number == 5))
        query = torch.cat([correlated(64, generator), constant], dim=1)
        if number == 5:
            assert spread.chance(query) > 0.001
        spread.add(query, seen=False)


def test_a_query_that_is_not_finite_is_no_evidence() -> None:
    spread, generator = Spread(60), Generator().manual_seed(0)
    spread.add(correlated(64, generator), seen=False)
    spread.add(correlated(64, generator) * float("nan"), seen=False)
    assert spread.bursts == Spread(60).bursts
    assert 0 < spread.chance(correlated(64, generator)) <= 1


def test_a_query_from_elsewhere_has_no_chance() -> None:
    spread, generator = Spread(60), Generator().manual_seed(0)
    for _ in range(5):
        spread.add(correlated(64, generator), seen=False)
    assert spread.chance(correlated(64, generator) + 3) < 1e-4


def sorted_stream(spread: Spread, queries: int, generator: Generator, seen: bool) -> None:
    for number in range(queries):
        spread.add(correlated(64, generator) + 3 * (number // 3 % 2), seen=seen)


def test_bursts_become_certain_and_are_forgotten_again() -> None:
    spread, generator = Spread(60), Generator().manual_seed(1)
    undecided = spread.bursts
    sorted_stream(spread, 9, generator, seen=False)
    assert undecided < spread.bursts == spread.unseen == 1
    for _ in range(20):
        spread.add(correlated(64, generator), seen=False)
    assert spread.bursts < undecided


def test_bursts_that_the_predictions_show_are_not_missed() -> None:
    spread, generator = Spread(60), Generator().manual_seed(2)
    sorted_stream(spread, 9, generator, seen=True)
    assert spread.bursts == 1
    assert spread.unseen == 0
    spread.add(correlated(64, generator) + 9, seen=False)
    assert 0 < spread.unseen < 0.5, "one that they miss among many that they show"


def test_missed_bursts_that_are_certain_stay_so_while_others_are_shown() -> None:
    spread, generator = Spread(60), Generator().manual_seed(2)
    sorted_stream(spread, 9, generator, seen=False)
    assert spread.unseen == 1
    sorted_stream(spread, 9, generator, seen=True)
    assert spread.unseen == 1
    for _ in range(30):
        spread.add(correlated(64, generator), seen=False)
    assert spread.unseen < 0.5, "until the stream is mixed"


def test_a_new_domain_begins_undecided() -> None:
    spread, generator = Spread(60), Generator().manual_seed(3)
    sorted_stream(spread, 9, generator, seen=False)
    spread.clear()
    assert spread.bursts == Spread(60).bursts
    spread.add(correlated(64, generator) + 100, seen=False)
    assert spread.bursts == Spread(60).bursts, "the first query has nothing to be compared with"


# Agreement


def test_learners_that_guess_do_not_agree_beyond_chance() -> None:
    agreement = Agreement(EVEN)
    for seed in range(10):
        agreement.add([certain(drawn(64, seed)), certain(drawn(64, 100 + seed))])
    assert abs(agreement.kappa) < 0.3


def test_agreeing_on_one_class_for_ever_is_chance_but_a_burst_is_not() -> None:
    agreement, same = Agreement(EVEN), certain(torch.zeros(64).long())
    other = same.clone()
    other[:4] = certain(torch.ones(4).long())
    for seed in range(10):
        labels = certain(drawn(64, seed))
        agreement.add([labels, labels])
    agreement.add([same, other])
    assert agreement.kappa > 0.8, "a burst that both recognise"
    for _ in range(60):
        agreement.add([same, other])
    assert agreement.kappa < 0.5


def test_old_samples_do_not_count_for_agreement() -> None:
    agreement, labels = Agreement(EVEN), certain(torch.arange(64) % 4)
    for _ in range(5):
        agreement.add([labels, labels])
    agreement.add([labels, labels.roll(1, 1)])
    assert agreement.kappa < 0


def test_a_single_learner_agrees_with_itself() -> None:
    agreement = Agreement(EVEN)
    agreement.add([certain(drawn(64, 0))])
    assert agreement.kappa == 1


def judged(mine: list[Tensor], theirs: list[Tensor]) -> str | None:
    pair = Agreement(EVEN), Agreement(EVEN)
    for agreement, predictions in zip(pair, (mine, theirs), strict=True):
        agreement.add(predictions)
    return worse(*pair)


def test_what_is_worse_than_the_reference() -> None:
    good = certain(drawn(64, 0))
    unsure = 0.97 * EVEN + 0.03 * certain(torch.full((64,), 2))
    assert judged([good, good], [good, good]) is None
    assert "they saw 1.0 classes" in str(judged([certain(torch.zeros(64).long())] * 2, [good, good]))
    assert "they saw 1.0 classes" in str(judged([unsure, unsure], [good, good])), "they vote for one class"
    assert "they agreed on" in str(judged([good, certain(drawn(64, 1))], [good, good]))
    assert "no longer finite" in str(judged([good, good * float("nan")], [good, good]))


def test_less_sure_or_a_little_apart_is_not_worse() -> None:
    good = certain(drawn(64, 0))
    apart = good.clone()
    apart[:6] = good[:6].roll(1, 1)
    assert judged([0.5 * EVEN + 0.5 * good] * 2, [good, good]) is None
    assert judged([good, apart], [good, good]) is None
    assert judged([good[:8], good[:8].roll(1, 1)], [good[:8]] * 2) is None, "eight samples are no evidence"


# Place


@pytest.fixture(scope="module")
def learners(source: Source) -> list[Learner]:
    torch.set_num_threads(1)
    ready = make_learners(source, 2, 0, LearnerSettings(warmup=15, warmup_batch=32))
    warm_up(ready, ENGINE, source, Augment())
    for learner in ready:
        learner.keep_target_statistics(EVEN, [(source.images, source.labels)])
    return ready


def test_a_mix_of_classes_is_near_and_another_domain_far(source: Source, learners: list[Learner]) -> None:
    reference = Reference(learners, EVEN)
    home = reference.look(source.images, ENGINE).place
    assert reference.distance(home, home) == 0
    for label in range(4):
        place = reference.look(source.images[source.labels == label], ENGINE).place
        assert reference.distance(place, home) < 2
        assert reference.distance(place, home) == pytest.approx(reference.distance(home, place))
    striped = (0.5 + 0.5 * torch.sin(torch.arange(16) * 0.8)).expand(40, 1, 16, 16)
    farthest = max(
        reference.distance(reference.look(source.images[source.labels == label], ENGINE).place, home)
        for label in range(4)
    )
    assert reference.distance(reference.look(striped, ENGINE).place, home) > 2 * farthest


def test_the_reference_does_not_move_with_the_learners(source: Source, learners: list[Learner]) -> None:
    reference = Reference(learners, EVEN)
    before = reference.look(source.images, ENGINE)
    state = {name: value.clone() for name, value in learners[0].state().items()}
    for _ in range(3):
        learners[0].update(learners[0].forward_query(source.images).square().mean())
    after = reference.look(source.images, ENGINE)
    learners[0].load_state(state)
    assert all(map(torch.equal, before.place, after.place))
    assert all(map(torch.equal, before.probabilities, after.probabilities))
    assert len(before.place) == len(reference.home)


def test_the_place_of_a_query_is_the_mean_of_its_samples(source: Source, learners: list[Learner]) -> None:
    """Each sample is predicted by itself, so the place of a mixture lies between those of its parts."""
    reference = Reference(learners, EVEN)
    parts = [reference.look(source.images[half], ENGINE) for half in (slice(0, 20), slice(20, 40))]
    for whole, one, other in zip(reference.look(source.images, ENGINE).place, *(p.place for p in parts), strict=True):
        torch.testing.assert_close(whole, (one + other) / 2, atol=1e-4, rtol=1e-3)


def test_a_reference_goes_on_from_its_state(source: Source, learners: list[Learner]) -> None:
    one = Reference(learners, EVEN)
    fresh = make_learners(source, 2, 9, LearnerSettings())
    for learner in fresh:
        learner.keep_target_statistics(EVEN, [(source.images, source.labels)])
    other = Reference(fresh, EVEN)
    other.load_state({name: value.clone() for name, value in one.state().items()})
    assert one.unit == other.unit
    looks = [reference.look(source.images, ENGINE) for reference in (one, other)]
    assert torch.equal(looks[0].features, looks[1].features)
