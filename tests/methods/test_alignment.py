"""A step of source-only, DAN, CORAL and ENT against a hand-written joint step from the same bootstrap and views."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crodobo import Source
from crodobo.methods import REGISTRY


def nothing(source: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    return torch.zeros(())


def discrepancy(source: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    """Five Gaussians whose widths follow the features' mean distance, and get no gradient."""
    both = torch.cat([source, target]).detach()
    mean = torch.cdist(both, both).square().sum() / (len(both) * (len(both) - 1))

    def average(one: Tensor, other: Tensor) -> Tensor:
        squares = (one**2).sum(1)[:, None] + (other**2).sum(1)[None] - 2 * one @ other.T
        return torch.stack([(-squares / (2 * 2.0**k * mean)).exp().mean() for k in (-3, -2, -1, 0, 1)]).sum()

    return average(source, source) + average(target, target) - 2 * average(source, target)


def covariances(source: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    def covariance(features: Tensor) -> Tensor:
        centred = features - features.mean(0)
        return centred.T @ centred / (len(features) - 1)

    return ((covariance(source) - covariance(target)) ** 2).sum() / (4 * 256**2)


def uncertainty(source: Tensor, target: Tensor, logits: Tensor) -> Tensor:
    probabilities = logits.exp() / logits.exp().sum(1, keepdim=True)
    return -(probabilities * probabilities.log()).sum(1).mean()


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize(
    ("name", "loss", "settings"),
    [
        ("source-only", nothing, {}),
        ("dan", discrepancy, {}),
        ("dan", discrepancy, {"weight": 0.3}),
        ("coral", covariances, {}),
        ("coral", covariances, {"weight": 1e4}),
        ("ent", uncertainty, {}),
        ("ent", uncertainty, {"weight": 2.5}),
    ],
)
def test_steps_match_a_joint_loss(
    name: str,
    loss: Callable[..., Tensor],
    settings: dict[str, float],
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    by_hand: Any,
    views_of: Any,
) -> None:
    method = REGISTRY[name](source, learners=2, warmup=0, parallel=False, threads=1, steps=1, **settings)
    views = views_of(method)
    hands = [by_hand(method, number) for number in (0, 1)]
    optimisers = [hand.adam(list(hand.network.parameters())) for hand in hands]
    for seed in range(2):
        images = make_images(7, seed)
        weak = method.augment.weak(images, views) if name != "source-only" else images
        for hand, optimiser in zip(hands, optimisers, strict=True):
            batch, labels = hand.bootstrap(len(images))
            of_source = hand.network.encode(batch).features
            of_query = hand.network.encode(weak).features
            known = torch.log_softmax(hand.network.classifier(of_source), 1)[torch.arange(len(labels)), labels]
            aligned = loss(of_source, of_query, hand.network.classifier(of_query))
            optimiser.zero_grad()
            (-known.mean() + settings.get("weight", 1.0) * aligned).backward()
            optimiser.step()
        ask(method, images)
    for learner, hand in zip(method.learners, hands, strict=True):
        for (part, ours), theirs in zip(learner.network.named_parameters(), hand.network.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=part)


@pytest.mark.parametrize("name", ["dan", "coral", "ent", "dann", "cdan", "cdan-e", "mdd"])
def test_with_weight_zero_the_query_has_no_effect(
    name: str, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    """Different queries of the same size lead to the same weights as source-only."""
    settings = {"warmup": 0, "threads": 1, "steps": 1}
    methods = [REGISTRY[name](source, weight=0.0, **settings) for _ in range(2)]
    methods.append(REGISTRY["source-only"](source, **settings))
    for method, seed in zip(methods, (0, 1, 2), strict=True):
        ask(method, make_images(7, seed))
    first, *others = (dict(method.learners[0].network.named_parameters()) for method in methods)
    for other in others:
        for part in first:
            torch.testing.assert_close(first[part], other[part], msg=part)


@pytest.mark.parametrize(("name", "loss", "weight"), [("dan", discrepancy, 1.0), ("coral", covariances, 1e3)])
def test_learning_the_alignment_makes_it_smaller(
    name: str,
    loss: Callable[..., Tensor],
    weight: float,
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    by_hand: Any,
) -> None:
    images, distances = 0.4 * make_images(24), []
    for used in (0.0, weight):
        method = REGISTRY[name](source, warmup=5, warmup_batch=16, threads=1, steps=1, weight=used)
        for _ in range(8):
            ask(method, images)
        network = by_hand(method).network
        with torch.no_grad():
            known, query = network.encode(source.images).features, network.encode(images).features
        distances.append(float(loss(known, query, query)))
    assert distances[1] < 0.9 * distances[0]
