"""The contract of every method with an offline form."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Method, Source, offline
from crodobo.core.metrics import ConfusionMatrix
from crodobo.methods import REGISTRY

OFFLINE = sorted(name for name, method in REGISTRY.items() if "offline" in method.protocols)


def make_images(size: int, seed: int) -> Tensor:
    """Noise in which one of four quarters is bright, in turn."""
    images = torch.rand(size, 1, 16, 16, generator=Generator().manual_seed(seed)) * 0.6
    for number, image in enumerate(images):
        top, left = 8 * (number // 2 % 2), 8 * (number % 2)
        image[:, top : top + 8, left : left + 8] += 0.4
    return images


TARGET, TRUTH = make_images(10, seed=1), torch.arange(10) % 4


def make(name: str, **settings: Any) -> Method:
    kind = REGISTRY[name]
    source = Source(make_images(4, seed=0), torch.arange(4))
    options = {"warmup": 1, "warmup_batch": 8, "threads": 1, "burn": "off" if kind.keeps_target else "standard"}
    return kind(source, **options | settings)


@cache
def finished(name: str, parallel: bool) -> tuple[Method, Tensor, ConfusionMatrix]:
    """A method of two learners after one epoch, a copy of a weight before it, and the score."""
    method = make(name, learners=2, parallel=parallel)
    before = method.learners[0].network.bottleneck[0].weight.clone()
    return method, before, offline(method, TARGET, TRUTH, size=5, epochs=1, seed=0)


@pytest.mark.parametrize("name", OFFLINE)
def test_sequence_and_parallel_give_the_same_confusion_and_bits(name: str) -> None:
    (one, _, score), (other, _, again) = (finished(name, parallel) for parallel in (False, True))
    assert score.samples == len(TARGET)
    assert torch.equal(score.counts, again.counts)
    first, second = one.state(), other.state()
    assert first.keys() == second.keys()
    assert not [part for part in first if not torch.equal(first[part], second[part])]


@pytest.mark.parametrize("name", OFFLINE)
def test_a_run_learns_and_ends_with_finite_predictions(name: str) -> None:
    method, before, _ = finished(name, False)
    probabilities = method.predict(TARGET).probabilities
    assert probabilities.isfinite().all()
    torch.testing.assert_close(probabilities.sum(1), torch.ones(len(TARGET)))
    assert not torch.equal(method.learners[0].network.bottleneck[0].weight, before)
    assert not [part for part, value in method.state().items() if not value.double().isfinite().all()]
    assert all(weight.grad is None for learner in method.learners for weight in learner.network.parameters())


@pytest.mark.parametrize("name", OFFLINE)
def test_batches_of_one_skip_no_update(name: str) -> None:
    method = make(name)
    skipped, revisit = [], method.revisit

    def watch(*arguments: Any) -> Any:
        adaptation = revisit(*arguments)
        skipped.append(adaptation.skipped)
        return adaptation

    method.revisit = watch
    assert offline(method, TARGET[:3], TRUTH[:3], size=1, epochs=1).samples == 3
    assert skipped == [0, 0, 0, 0]
