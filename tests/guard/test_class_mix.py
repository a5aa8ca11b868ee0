"""ClassMix measures how evenly samples spread over classes."""

import pytest
import torch
from torch import Generator, Tensor

from crodobo.guard.class_mix import ClassMix, narrower


def draw(size: int, classes: int, seed: int = 0) -> Tensor:
    """One-hot predictions, all of `classes` of ten equally likely."""
    return torch.eye(10)[torch.randint(classes, (size,), generator=Generator().manual_seed(seed))]


@pytest.mark.parametrize("size", [3, 8, 64])
def test_the_probability_of_the_same_class_does_not_depend_on_the_sample_count(size: int) -> None:
    chances = [ClassMix.of(draw(size, 5, seed)).same for seed in range(2000)]
    assert sum(chances) / len(chances) == pytest.approx(1 / 5, abs=0.01)


def test_uniform_predictions_count_as_all_classes() -> None:
    assert ClassMix.of(torch.full((64, 10), 0.1)).same == pytest.approx(0.1)


def test_one_sample_has_no_mix() -> None:
    mix = ClassMix.of(draw(1, 10))
    assert mix.same == 0
    assert not narrower(mix, ClassMix.of(draw(64, 10)))


def test_small_queries_are_judged_together_and_a_large_one_alone() -> None:
    mix = ClassMix(10, horizon=64)
    mix.add(draw(64, 1))
    for seed in range(64):
        mix.add(draw(2, 10, seed))
    assert mix.same < 0.2
    mix.add(draw(64, 1))
    assert (mix.same, mix.samples) == (pytest.approx(1), pytest.approx(64))


def test_less_than_half_the_usual_classes_are_narrow_given_enough_samples() -> None:
    usual = ClassMix.of(draw(1600, 10))
    assert [narrower(ClassMix.of(draw(64, few)), usual, sigmas=4) for few in (1, 3, 8, 10)] == [
        True,
        True,
        False,
        False,
    ]
    assert not narrower(ClassMix.of(draw(2, 1)), usual, sigmas=4)
    assert not narrower(ClassMix.of(draw(64, 2)), ClassMix.of(draw(1600, 2)), sigmas=4), (
        "two classes may be all there are"
    )
