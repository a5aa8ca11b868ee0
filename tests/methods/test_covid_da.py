"""COVID-DA*: one step of its three losses by hand, and the parts that each loss changes."""

from collections.abc import Callable
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor

from crodobo import Query, Source
from crodobo.methods.covid_da import COVIDDA


def revisit(method: COVIDDA, images: Tensor) -> None:
    with Query(images.clone()) as query:
        assert method.revisit(query, query.pixels(), torch.arange(len(images))).skipped == 0


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("classifiers", [1, 2, 3])
def test_a_step_matches_the_formula(
    classifiers: int, source: Source, make_images: Callable[..., Tensor], by_hand: Any, views_of: Any
) -> None:
    weights = {"adversarial_weight": 0.7, "agreement_weight": 1.3}
    method = COVIDDA(source, warmup=0, threads=1, steps=1, burn="off", classifiers=classifiers, **weights)
    method.expect(10)
    method.steps = 4
    images, learner = make_images(6), method.learners[0]
    hand, weak = by_hand(method), method.augment.weak(images, views_of(method))
    batch, labels = hand.bootstrap(6)
    others, adversary = learner.part("classifiers"), learner.part("adversary")
    assert len(others) == classifiers - 1

    known, query = hand.network.encode(batch).features, hand.network.encode(weak).features
    heads = [hand.network.classifier, *others]
    right = [torch.softmax(head(known), 1)[torch.arange(6), labels] for head in heads]
    focal = sum((-((1 - p) ** 2) * p.log()).mean() for p in right) / classifiers
    guesses = [torch.softmax(head(query), 1) for head in heads]
    middle = sum(guesses) / classifiers
    apart = sum((p - middle).abs().sum(1).mean() for p in guesses) / classifiers
    told = -(torch.sigmoid(adversary(known)).log().mean() + (1 - torch.sigmoid(adversary(query))).log().mean()) / 2

    own = list(hand.network.parameters())
    played = [*others.parameters(), *adversary.parameters()]
    coefficient = 2 / (1 + exp(-4)) - 1

    def gradients(loss: Tensor, of: list[Tensor]) -> list[Tensor]:
        return list(torch.autograd.grad(loss, of, retain_graph=True, materialize_grads=True))

    taught = gradients(focal + 1.3 * apart, [*own, *played])
    reversed_ = gradients(0.7 * told, [*own, *played])
    for number, gradient in enumerate(reversed_):
        taught[number] = taught[number] + (-coefficient if number < len(own) else 1) * gradient
    copies = [weight.detach().clone() for weight in (*own, *played)]
    for copy, gradient in zip(copies, taught, strict=True):
        copy.grad = gradient
    optimiser = hand.adam(copies, method.settings.momentum)
    optimiser.step()

    revisit(method, images)
    for ours, theirs in zip([*learner.network.parameters(), *played], copies, strict=True):
        torch.testing.assert_close(ours.detach(), theirs, atol=1e-8, rtol=1e-6)
        gradient = learner.optimiser.state[ours]["exp_avg"]  # Adam's first step shows only its sign
        torch.testing.assert_close(gradient, optimiser.state[theirs]["exp_avg"], atol=1e-10, rtol=1e-6)


def test_all_classifiers_and_the_discriminator_learn(source: Source, make_images: Callable[..., Tensor]) -> None:
    method = COVIDDA(source, learners=2, warmup=0, threads=1, steps=1, burn="off", classifiers=3)
    parts = [
        part
        for learner in method.learners
        for part in (learner.network.classifier, *learner.part("classifiers"), learner.part("adversary"))
    ]
    before = [[weight.clone() for weight in part.parameters()] for part in parts]
    revisit(method, make_images(6))
    for part, weights in zip(parts, before, strict=True):
        assert not any(torch.equal(*pair) for pair in zip(part.parameters(), weights, strict=True))


def test_each_loss_reaches_the_backbone(source: Source, make_images: Callable[..., Tensor]) -> None:
    """A step with a loss and a step without it give different backbone weights."""
    ends = []
    for weights in ((1.0, 1.0), (0.0, 1.0), (1.0, 0.0)):
        options = dict(zip(("adversarial_weight", "agreement_weight"), weights, strict=True))
        method = COVIDDA(source, warmup=0, threads=1, steps=1, burn="off", **options)
        method.expect(10)
        method.steps = 5
        revisit(method, make_images(6))
        ends.append(method.learners[0].network.backbone.stem[0].weight)
    assert not torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_at_the_start_the_discriminator_does_not_reach_the_backbone(
    source: Source, make_images: Callable[..., Tensor]
) -> None:
    ends = []
    for weight in (1.0, 0.0):
        method = COVIDDA(source, warmup=0, threads=1, steps=1, burn="off", adversarial_weight=weight)
        revisit(method, make_images(6))
        ends.append(method.learners[0].network.backbone.stem[0].weight)
    assert torch.equal(*ends)
