"""EATA: which samples it keeps, what they weigh, its Fisher term and its memory, against numpy."""

import copy
from collections.abc import Callable
from math import ceil, exp, log, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor, nn

from crodobo import Source
from crodobo.engine import Sequence
from crodobo.methods.eata import EATA, EATASettings, FisherMemory
from crodobo.methods.sar import SAR
from crodobo.methods.tent import TENT
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners, warm_up
from crodobo.views.augment import Augment


def warm_learner(source: Source, settings: EATASettings) -> Learner:
    learners = make_learners(source, 1, 0, settings)
    warm_up(learners, Sequence(1), source, Augment())
    return learners[0]


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def selected(p: np.ndarray, mean: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Which samples are sure, H < 0.4 ln C; and which are new, |cos(p, p̄)| < 0.4 √(10/C), once there is a mean."""
    sure = -(p * np.log(p)).sum(axis=1) < 0.4 * log(p.shape[1])
    if mean is None:
        return sure, np.ones_like(sure)
    cosine = p @ mean / (np.linalg.norm(p, axis=1) * np.linalg.norm(mean))
    return sure, np.abs(cosine) < 0.4 * sqrt(10 / p.shape[1])


@pytest.mark.usefixtures("_in_double_precision")
def test_steps_match_the_formula(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    normalisation: Callable[..., list[nn.Parameter]],
) -> None:
    options = {"warmup": 12, "warmup_batch": 16, "threads": 1, "steps": 1, "fisher_samples": 40}
    learner = warm_learner(source, EATASettings(**options))
    drawing = Generator()
    drawing.set_state(learner.generator.get_state())
    method = EATA(source, learners=[learner], **options)
    network = copy.deepcopy(learner.network).train()
    weights = normalisation(network)
    start = [weight.detach().clone() for weight in weights]
    fisher = [torch.zeros_like(weight) for weight in weights]
    batches = ceil(40 / 16)
    for _ in range(batches):
        drawn = torch.randint(len(source), (16,), generator=drawing)
        logp = torch.log_softmax(network(source.images[drawn].double()), 1)
        gradients = torch.autograd.grad(-logp.amax(1).mean(), weights)  # its own most likely class
        fisher = [total + gradient**2 / batches for total, gradient in zip(fisher, gradients, strict=True)]
    memory = learner.part("memory")
    for number, expected in enumerate(fisher):
        torch.testing.assert_close(memory.get_buffer(f"fisher{number}"), expected, atol=1e-12, rtol=1e-7)

    optimiser = torch.optim.Adam(weights, lr=1e-3, foreach=False, fused=False)
    sure_below, mean, left_out = 0.4 * log(4), None, {"unsure": 0, "known": 0}
    for seed in range(4):
        images = make_images(12, seed, noise=0.3 + 0.2 * seed)
        if seed == 1:
            images = images[:1].repeat(12, 1, 1, 1) * torch.linspace(0.7, 1, 12)[:, None, None, None]
        logits = network(images)
        p = probabilities(logits.detach().numpy())
        sure, new = selected(p, mean)
        kept = sure & new
        left_out["unsure"] += (~sure & new).sum()
        left_out["known"] += (sure & ~new).sum()
        if kept.any():
            entropies = -(torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1)
            weighted = [exp(sure_below - float(h.detach())) * h for h in entropies[torch.from_numpy(kept)]]
            held = sum(
                (f * (weight - before) ** 2).sum() for f, weight, before in zip(fisher, weights, start, strict=True)
            )
            optimiser.zero_grad()
            (sum(weighted) / len(weighted) + 2000 * held).backward()
            optimiser.step()
            mean = p[kept].mean(axis=0) if mean is None else 0.9 * mean + 0.1 * p[kept].mean(axis=0)
        assert ask(method, images).adaptation.kept == pytest.approx(kept.mean())
        np.testing.assert_allclose(memory.mean.numpy(), np.zeros(4) if mean is None else mean, rtol=1e-7)
        for ours, theirs in zip(normalisation(learner.network), weights, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)
    assert all(left_out.values()), "each bound must have left out samples that the other lets through"


def test_the_pull_to_the_source_is_two_beta_f_times_the_distance(generator: Generator) -> None:
    weights = [nn.Parameter(torch.randn(size, generator=generator)) for size in (3, 5)]
    fisher = [torch.rand(size, generator=generator) for size in (3, 5)]
    memory = FisherMemory(weights, fisher, classes=2)
    start = [weight.detach().clone() for weight in weights]
    assert memory.distance(weights).item() == 0
    with torch.no_grad():
        for weight in weights:
            weight += torch.randn(weight.shape, generator=generator)
    gradients = torch.autograd.grad(2000 * memory.distance(weights), weights)
    for gradient, f, weight, before in zip(gradients, fisher, weights, start, strict=True):
        torch.testing.assert_close(gradient, 2 * 2000 * f * (weight.detach() - before))


def test_the_first_predictions_set_the_mean_and_later_ones_move_it_by_a_tenth() -> None:
    memory = FisherMemory([], [], classes=2)
    given = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    assert memory.similarity(given).tolist() == [0, 0], "nothing is alike before there is a mean"
    memory.remember(given)
    torch.testing.assert_close(memory.mean, torch.tensor([0.7, 0.3]))
    memory.remember(torch.tensor([[0.0, 1.0]]))
    torch.testing.assert_close(memory.mean, torch.tensor([0.63, 0.37]))
    cosine = [(0.8 * 0.63 + 0.2 * 0.37) / (sqrt(0.68) * sqrt(0.63**2 + 0.37**2))]
    torch.testing.assert_close(memory.similarity(given[:1]), torch.tensor(cosine))


@pytest.mark.parametrize("settings", [{"margin": 0.0}, {"redundancy": 0.0}])
def test_without_kept_samples_no_weight_changes(
    settings: dict[str, float],
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    changed_since: Callable[..., list[str]],
) -> None:
    method = EATA(source, warmup=3, warmup_batch=16, threads=1, steps=1, fisher_samples=16, **settings)
    before = {name: value.clone() for name, value in method.state().items()}
    prediction = ask(method, make_images(8))
    assert (prediction.adaptation.kept, prediction.adaptation.skipped) == (0, 0)
    assert changed_since(method, before) == []


@pytest.mark.parametrize("kind", [EATA, SAR])
def test_an_entropy_that_is_not_finite_is_counted_as_skipped(
    kind: type[TENT], source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method = kind(source, warmup=1, warmup_batch=8, threads=1, steps=1)
    with torch.no_grad():
        method.learners[0].network.bottleneck[0].weight[0, 0] = float("nan")
    assert ask(method, make_images(4)).adaptation.skipped == 1


def test_the_fisher_information_changes_no_statistic_and_leaves_no_gradient(source: Source) -> None:
    options = {"warmup": 2, "warmup_batch": 8, "threads": 1, "steps": 1, "fisher_samples": 16}
    learner = warm_learner(source, EATASettings(**options))
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    EATA(source, learners=[learner], **options)
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())
    assert all(weight.grad is None for weight in learner.network.parameters())
