"""MDD's loss against its formula, also for saturated probabilities."""

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from crodobo.losses import margin_disparity


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@given(
    source=st.integers(1, 6),
    target=st.integers(1, 6),
    classes=st.integers(2, 5),
    gamma=st.floats(0, 8),
    seed=st.integers(0, 10_000),
)
def test_it_matches_its_formula(source: int, target: int, classes: int, gamma: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    on_source, on_target = random.normal(size=(source, classes)) * 3, random.normal(size=(target, classes)) * 3
    of_source, of_target = random.integers(classes, size=source), random.integers(classes, size=target)
    agreement = [-log(p[label]) for p, label in zip(softmax(on_source), of_source, strict=True)]
    disagreement = [-log(1 - p[label]) for p, label in zip(softmax(on_target), of_target, strict=True)]
    expected = gamma * sum(agreement) / source + sum(disagreement) / target
    loss = margin_disparity(*map(torch.from_numpy, (on_source, of_source, on_target, of_target)), gamma)
    assert loss.item() == pytest.approx(expected, rel=1e-9)


def test_it_stays_finite_when_the_softmax_saturates() -> None:
    """At logits a, 0 the probability is 1 in floats; −log(1 − p) is a, and its derivative is 1."""
    source = torch.tensor([[0.0, 1e3]], requires_grad=True)
    target = torch.tensor([[1e3, 0.0]], requires_grad=True)
    assert torch.softmax(target, 1)[0, 0].item() == 1
    loss = margin_disparity(source, torch.tensor([0]), target, torch.tensor([0]), gamma=4.0)
    loss.backward()
    assert loss.item() == pytest.approx(4 * 1e3 + 1e3)
    torch.testing.assert_close(source.grad, torch.tensor([[-4.0, 4.0]]))
    torch.testing.assert_close(target.grad, torch.tensor([[1.0, -1.0]]))


def test_uniform_predictions_have_a_closed_form() -> None:
    loss = margin_disparity(torch.zeros(2, 5), torch.tensor([0, 3]), torch.zeros(3, 5), torch.tensor([1, 2, 4]), 4.0)
    assert loss.item() == pytest.approx(4 * log(5) - log(4 / 5))


def test_its_gradient_is_the_derivative(generator: Generator) -> None:
    source, target = (torch.randn(n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in (3, 2))
    of_source, of_target = torch.tensor([0, 2, 1]), torch.tensor([2, 0])
    assert torch.autograd.gradcheck(
        lambda one, other: margin_disparity(one, of_source, other, of_target, 4.0), (source, target)
    )
