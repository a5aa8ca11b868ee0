"""Focal loss against its formula and against the cross-entropy that it becomes at γ = 0."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator
from torch.nn import functional as F

from crodobo.losses import focal


@given(size=st.integers(1, 6), classes=st.integers(2, 5), gamma=st.floats(0, 5), seed=st.integers(0, 10_000))
def test_it_matches_its_formula(size: int, classes: int, gamma: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits, labels = random.normal(size=(size, classes)) * 3, random.integers(classes, size=size)
    powers = np.exp(logits)
    right = (powers / powers.sum(axis=1, keepdims=True))[np.arange(size), labels]
    expected = (-((1 - right) ** gamma) * np.log(right)).mean()
    assert float(focal(torch.from_numpy(logits), torch.from_numpy(labels), gamma)) == pytest.approx(expected, rel=1e-9)


def test_with_gamma_zero_it_is_cross_entropy(generator: Generator) -> None:
    logits, labels = torch.randn(7, 4, generator=generator), torch.arange(7) % 4
    torch.testing.assert_close(focal(logits, labels, gamma=0.0), F.cross_entropy(logits, labels))


def test_for_two_equal_classes_it_is_a_quarter_of_cross_entropy() -> None:
    assert float(focal(torch.zeros(3, 2), torch.tensor([0, 1, 1]))) == pytest.approx(log(2) / 4)


@pytest.mark.parametrize(
    "gamma",
    [
        0.0,
        0.5,
        1.0,
        2.0,
    ],
)
def test_saturated_predictions_give_finite_losses_and_gradients(gamma: float) -> None:
    logits = torch.tensor([[1e3, 0.0], [1e3, 0.0]], requires_grad=True)
    loss = focal(logits, torch.tensor([0, 1]), gamma)
    loss.backward()
    assert loss.item() == pytest.approx(500)
    torch.testing.assert_close(logits.grad, torch.tensor([[0.0, 0.0], [0.5, -0.5]]))


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_its_gradient_is_the_derivative(gamma: float, generator: Generator) -> None:
    logits = torch.randn(3, 4, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: focal(each, torch.tensor([1, 0, 3]), gamma), logits)
