"""A shift that adaptation must repair: the target is brighter and has a seventh of the contrast."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Query, Source, online
from crodobo.config import MethodSettings
from crodobo.engine import Sequence
from crodobo.methods import REGISTRY
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment

WARM = {"warmup": 25, "warmup_batch": 32, "threads": 1, "steps": 1}


def quarters(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise in which one of four quarters is a little brighter: the class."""
    random = Generator().manual_seed(seed)
    labels = torch.randint(4, (size,), generator=random)
    labels[:4] = torch.arange(4)
    images = torch.rand(size, 1, 16, 16, generator=random) * 0.5
    for image, label in zip(images, labels.tolist(), strict=True):
        top, left = 8 * (label // 2), 8 * (label % 2)
        image[:, top : top + 8, left : left + 8] += 0.075
    return images, labels


@pytest.fixture(scope="module")
def accuracy() -> Callable[..., float]:
    """The online accuracy of a method on the shifted stream; all methods start from the same learners."""
    source, (images, labels) = Source(*quarters(64, seed=0)), quarters(160, seed=1)
    warm = make_learners(source, 2, 0, MethodSettings(**WARM))
    warm_up(warm, Sequence(1), source, Augment())
    states = [{name: value.clone() for name, value in learner.state().items()} for learner in warm]

    @cache
    def score(name: str, **settings: Any) -> float:
        kind = REGISTRY[name]
        options = WARM | {"burn": "off" if kind.keeps_target else "standard"} | settings
        learners = make_learners(source, kind.Settings().learners, 0, kind.Settings(**options))
        for learner, state in zip(learners, states, strict=False):
            learner.load_state(state)
        method = kind(source, learners=learners, **options)
        method.expect(5)
        batches = zip(images.split(32), labels.split(32), strict=True)
        return online(method, ((Query(0.5 + 0.15 * batch), truth) for batch, truth in batches)).online_accuracy

    return score


def test_the_shift_breaks_a_model_that_does_not_adapt(accuracy: Callable[..., float]) -> None:
    assert accuracy("no-adaptation") < 0.45


@pytest.mark.parametrize(
    ("name", "settings"), [("bn-statistics", {}), ("tent", {}), ("eata", {}), ("sar", {}), ("cotta", {"views": 2})]
)
def test_the_querys_statistics_repair_it(name: str, settings: dict[str, int], accuracy: Callable[..., float]) -> None:
    assert accuracy(name, **settings) > accuracy("no-adaptation") + 0.3
    assert accuracy(name, **settings) > accuracy("bn-statistics") - 0.03, "and learning on top does not undo that"


def test_entropy_at_a_larger_rate_gains_on_top(accuracy: Callable[..., float]) -> None:
    assert accuracy("tent", adapt_lr=0.03) > accuracy("bn-statistics")


@pytest.mark.parametrize("name", ["dan", "coral", "ent", "dann", "mdd", "cdan", "cdan-e", "single", "conda"])
def test_alignment_is_not_worse_than_the_source_alone(name: str, accuracy: Callable[..., float]) -> None:
    assert accuracy(name, norm="query") > accuracy("source-only", norm="query") - 0.05


def test_crodobo_is_better_than_the_source_alone(accuracy: Callable[..., float]) -> None:
    assert accuracy("crodobo", norm="query") > accuracy("source-only", norm="query") + 0.04
