"""TENT against torch's plain Adam on the entropy of the query."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crodobo import Source
from crodobo.errors import BadSettings
from crodobo.methods.tent import TENT


def entropy(logits: Tensor) -> Tensor:
    p = logits.exp() / logits.exp().sum(1, keepdim=True)
    return -(p * p.log()).sum(1).mean()


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("size", [8, 2])
def test_steps_match_adam_on_the_entropy(
    size: int,
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    by_hand: Any,
    normalisation: Callable[..., list[nn.Parameter]],
    with_query_statistics: Callable[..., Tensor],
) -> None:
    method = TENT(source, warmup=5, warmup_batch=16, threads=1, steps=1)
    hand = by_hand(method)
    optimiser = torch.optim.Adam(normalisation(hand.network), lr=1e-3, foreach=False, fused=False)
    for seed in range(3):
        images = make_images(size, seed)
        optimiser.zero_grad()
        entropy(hand.network(images)).backward()  # train mode: the batch's statistics
        optimiser.step()
        prediction = ask(method, images)
        torch.testing.assert_close(prediction.probabilities, with_query_statistics(hand.network, images))
    ours, theirs = method.learners[0].network.state_dict(), hand.network.state_dict()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-9, rtol=1e-7, msg=name)


def test_only_scales_and_shifts_move(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    normalisation: Callable[..., list[nn.Parameter]],
) -> None:
    method = TENT(source, learners=2, warmup=5, warmup_batch=16, threads=1, steps=1)
    before = [
        {name: weight.clone() for name, weight in learner.network.named_parameters()} for learner in method.learners
    ]
    for seed in range(3):
        ask(method, make_images(8, seed))
    for learner, weights in zip(method.learners, before, strict=True):
        adapted = {id(weight) for weight in normalisation(learner.network)}
        for name, weight in learner.network.named_parameters():
            assert torch.equal(weight, weights[name]) == (id(weight) not in adapted), name


def test_the_entropy_of_a_query_falls(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method, images = TENT(source, warmup=5, warmup_batch=16, threads=1, steps=1, adapt_lr=5e-3), make_images(12)
    course = []
    for _ in range(10):
        p = ask(method, images).probabilities
        course.append(float(-(p * p.log()).sum(1).mean()))
    assert course[-1] < 0.6 * course[0]
    assert course == sorted(course, reverse=True)


def test_the_source_is_not_needed(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = TENT(source, warmup=1, warmup_batch=8, threads=1, steps=1)
    monkeypatch.setattr(Source, "bootstrap", lambda *_: pytest.fail("drew from the source"))
    ask(method, make_images(4))


def test_a_network_without_normalisation_is_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crodobo.methods.tent.scales_and_shifts", lambda network: [])
    with pytest.raises(BadSettings, match="tent learns scales and shifts of normalisation layers, and small has"):
        TENT(source, warmup=0, threads=1, steps=1)
