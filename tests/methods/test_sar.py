"""SAR: its two passes, and recovery after an error and after a collapse."""

from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crodobo import Source
from crodobo.methods.sar import SAR, Start

WARM = {"warmup": 10, "warmup_batch": 16, "threads": 1, "steps": 1}


def entropies(logits: Tensor) -> Tensor:
    return -(torch.softmax(logits, 1) * torch.log_softmax(logits, 1)).sum(1)


@pytest.mark.usefixtures("_in_double_precision")
def test_steps_match_two_passes(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    by_hand: Any,
    normalisation: Callable[..., list[nn.Parameter]],
) -> None:
    """ρ is large, so the gradient and the confident samples differ at the uphill weights."""
    method = SAR(source, **WARM, rho=2.0, reset_below=0.0)
    hand = by_hand(method)
    weights = normalisation(hand.network)
    optimiser = torch.optim.Adam(weights, lr=1e-3, foreach=False, fused=False)
    bound, moving, dropped = 0.4 * log(4), None, [0, 0]
    for seed in range(3):
        images = make_images(16, seed, noise=0.3 + 0.2 * seed)
        first = entropies(hand.network(images))
        sure = first < bound
        gradients = torch.autograd.grad(first[sure].mean(), weights)
        length = torch.sqrt(sum((gradient**2).sum() for gradient in gradients))
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight += 2.0 * gradient / length
        second = entropies(hand.network(images))
        still = sure & (second < bound)
        loss = second[still].mean()
        gradients_there = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, there, gradient in zip(weights, gradients_there, gradients, strict=True):
                weight -= 2.0 * gradient / length
                weight.grad = there
        optimiser.step()
        moving = loss.item() if moving is None else 0.9 * moving + 0.1 * loss.item()
        dropped[0] += int((~sure).sum())
        dropped[1] += int((sure & ~still).sum())
        assert ask(method, images).adaptation.kept == pytest.approx(float(still.double().mean()))
    assert all(dropped), "both passes must leave samples out"
    assert float(method.learners[0].part("start").moving) == pytest.approx(moving)
    for ours, theirs in zip(method.learners[0].network.parameters(), hand.network.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-7)


def test_only_scales_and_shifts_move(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    normalisation: Callable[..., list[nn.Parameter]],
) -> None:
    method = SAR(source, **WARM, reset_below=0.0)
    network = method.learners[0].network
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    ask(method, make_images(12, noise=0.3))
    adapted = {id(weight) for weight in normalisation(network)}
    for name, weight in network.named_parameters():
        assert torch.equal(weight, before[name]) == (id(weight) not in adapted), name


def test_an_error_in_the_second_pass_changes_nothing(
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    changed_since: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = SAR(source, **WARM, reset_below=0.0, rho=1.0)
    ask(method, make_images(12, noise=0.3))
    before = {name: value.clone() for name, value in method.state().items()}
    learner = method.learners[0]
    forward, moved = learner.forward, []

    def fail_at_the_neighbour(images: Tensor) -> Tensor:
        name = "learners.0.network.bottleneck.1.weight"
        moved.append(not torch.equal(learner.network.bottleneck[1].weight, before[name]))
        if len(moved) == 2:
            raise MemoryError
        return forward(images)

    monkeypatch.setattr(learner, "forward", fail_at_the_neighbour)
    with pytest.raises(MemoryError):
        ask(method, make_images(12, seed=1, noise=0.3))
    assert moved == [False, True], "the second pass is made at moved weights"
    assert changed_since(method, before) == []
    assert all(weight.grad is None for weight in learner.network.parameters())


@pytest.mark.parametrize("settings", [{"margin": 0.0}, {"margin": 0.3, "rho": 1e3}])
def test_without_samples_confident_in_both_passes_nothing_changes(
    settings: dict[str, float],
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    changed_since: Callable[..., list[str]],
) -> None:
    method = SAR(source, **WARM, **settings)
    before = {name: value.clone() for name, value in method.state().items()}
    passes = []
    learner = method.learners[0]
    forward = learner.forward
    learner.forward = lambda images: passes.append(forward(images)) or passes[-1]
    if "rho" in settings:  # nothing is confident at the uphill weights
        learner.forward = lambda images: passes.append(forward(images) * (0 if passes else 1)) or passes[-1]
    assert ask(method, make_images(8, noise=0.3)).adaptation.kept == 0
    assert len(passes) == (2 if "rho" in settings else 1)
    assert changed_since(method, before) == []


def test_a_sample_that_is_uncertain_in_the_first_pass_is_skipped(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if everything is confident at the uphill weights."""
    method = SAR(source, **WARM)
    learner, sure = method.learners[0], []
    forward = learner.forward

    def surer_each_time(images: Tensor) -> Tensor:
        logits = forward(images) * (100 if sure else 1)
        sure.append((entropies(logits.detach()) < 0.4 * log(4)).float().mean().item())
        return logits

    monkeypatch.setattr(learner, "forward", surer_each_time)
    kept = ask(method, make_images(16, noise=0.7)).adaptation.kept
    assert 0 < sure[0] < sure[1], "the second pass must be sure of more"
    assert kept == pytest.approx(sure[0])


def test_the_first_loss_sets_the_moving_mean_and_later_ones_move_it_by_a_tenth() -> None:
    start = Start([])
    assert not start.collapsed(0.5, below=0.2)
    course = [0.5]
    for _ in range(20):
        course.append(0.9 * course[-1] + 0.1 * 0.1)
        assert start.collapsed(0.1, below=0.2) == (course[-1] < 0.2)
        assert float(start.moving) == pytest.approx(course[-1])
    assert course[-1] < 0.2 < course[10], "the bound must be met on the way"
    assert Start([]).collapsed(0.1, below=0.2), "a first loss under the bound is a collapse already"


def test_a_collapse_resets_weights_and_optimiser(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    """Before the reset it behaves like a method without a bound, after it like a new one."""
    images = [make_images(12, seed, noise=0.3) for seed in range(4)]
    unbounded, bounded = SAR(source, **WARM, reset_below=0.0), SAR(source, **WARM, reset_below=1e-9)
    learner = bounded.learners[0]
    began = {name: value.clone() for name, value in learner.state().items() if "running" not in name}
    for each in images[:2]:
        assert torch.equal(ask(unbounded, each).probabilities, ask(bounded, each).probabilities)
    assert learner.optimiser.state
    with torch.no_grad():
        learner.part("start").moving.fill_(-0.5)  # below any bound, and not NONE_YET
    ask(bounded, images[2])
    for name, value in learner.state().items():
        if name in began and "num_batches" not in name:
            assert torch.equal(value, began[name]), name
    assert not learner.optimiser.state
    assert float(learner.part("start").moving) == -1
    ask(bounded, images[3])
    steps = {int(moments["step"]) for moments in learner.optimiser.state.values()}
    assert steps == {1}, "the optimiser counts from the start again"
