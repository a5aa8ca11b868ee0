"""MMD against a plain double loop, its closed forms and its symmetries."""

from itertools import product
from math import exp
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from crodobo.losses import mmd

sizes = st.integers(1, 6)
seeds = st.integers(0, 10_000)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def by_loops(source: np.ndarray, target: np.ndarray) -> float:
    """mean k(s, s') + mean k(t, t') − 2 mean k(s, t), k(a, b) = Σ_k exp(−‖a − b‖² / (2 · 2^k · mean‖Δ‖²))."""
    everything = [*source, *target]
    gaps = [
        float(((a - b) ** 2).sum())
        for (i, a), (j, b) in product(enumerate(everything), enumerate(everything))
        if i != j
    ]
    mean = sum(gaps) / len(gaps)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        gap = float(((a - b) ** 2).sum())
        return sum(exp(-gap / (2 * width * mean)) for width in (1 / 8, 1 / 4, 1 / 2, 1, 2))

    def average(one: np.ndarray, other: np.ndarray) -> float:
        return sum(kernel(a, b) for a in one for b in other) / (len(one) * len(other))

    return average(source, source) + average(target, target) - 2 * average(source, target)


@given(source=sizes, target=sizes, width=st.integers(1, 4), seed=seeds)
def test_it_matches_a_double_loop(source: int, target: int, width: int, seed: int) -> None:
    one, other = draw(seed, source, width), 3 * draw(seed + 1, target, width) + 1
    assert float(mmd(one, other)) == pytest.approx(by_loops(one.numpy(), other.numpy()), rel=1e-9, abs=1e-12)


@given(source=sizes, target=sizes, seed=seeds, order=st.randoms(use_true_random=False))
def test_it_is_positive_symmetric_and_ignores_order_shift_and_scale(
    source: int, target: int, seed: int, order: Random
) -> None:
    one, other = draw(seed, source, 3), 2 * draw(seed + 1, target, 3)
    value = float(mmd(one, other))
    assert value > 0
    assert float(mmd(other, one)) == pytest.approx(value)
    shuffled = one[order.sample(range(source), source)]
    assert float(mmd(shuffled, other)) == pytest.approx(value)
    assert float(mmd(one + 7, other + 7)) == pytest.approx(value), "only differences count"
    assert float(mmd(5 * one, 5 * other)) == pytest.approx(value), "the widths grow with the features"


def test_a_batch_has_distance_zero_to_itself() -> None:
    batch = draw(0, 5, 3)
    assert float(mmd(batch, batch)) == pytest.approx(0, abs=1e-12)
    assert float(mmd(batch, batch.repeat(3, 1))) == pytest.approx(0, abs=1e-12)


def test_two_single_samples_have_a_closed_form() -> None:
    """‖Δ‖² is its own mean, so for any distance each kernel is exp(−1 / 2·2^k)."""
    expected = 2 * 5 - 2 * sum(exp(-1 / (2 * 2.0**k)) for k in range(-3, 2))
    assert float(mmd(draw(1, 1, 4), draw(2, 1, 4))) == pytest.approx(expected)


def test_identical_samples_give_zero_loss_and_gradient() -> None:
    source, target = (torch.full((size, 2), 0.3, requires_grad=True) for size in (3, 2))
    value = mmd(source, target)
    value.backward()
    assert value.item() == 0
    assert not source.grad.any()
    assert not target.grad.any()


def test_its_gradient_is_the_derivative_for_fixed_widths() -> None:
    source, target = draw(3, 3, 2), draw(4, 2, 2)
    both = torch.cat([source, target])
    mean = ((both[:, None] - both[None]) ** 2).sum() / (5 * 4)

    def with_widths_held(one: Tensor, other: Tensor) -> Tensor:
        def average(a: Tensor, b: Tensor) -> Tensor:
            gaps = ((a[:, None] - b[None]) ** 2).sum(2)
            return sum(torch.exp(-gaps / (2 * 2.0**k * mean)) for k in range(-3, 2)).mean()

        return average(one, one) + average(other, other) - 2 * average(one, other)

    inputs = (source.requires_grad_(), target.requires_grad_())
    assert torch.autograd.gradcheck(with_widths_held, inputs)
    expected = torch.autograd.grad(with_widths_held(*inputs), inputs)
    torch.testing.assert_close(torch.autograd.grad(mmd(*inputs), inputs), expected)


def test_gradient_descent_moves_the_batches_together() -> None:
    source, target = draw(5, 6, 2), (draw(6, 6, 2) + 2).requires_grad_()
    first = mmd(source, target).item()
    for _ in range(20):
        (gradient,) = torch.autograd.grad(mmd(source, target), target)
        target = (target - 0.3 * gradient).detach().requires_grad_()
    assert mmd(source, target).item() < first / 2
