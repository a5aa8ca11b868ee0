"""Gradient reversal, its ramp and the discriminator's cross-entropy, against their formulas."""

from math import exp, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Generator, Tensor

from crodobo.losses import domain_confusion, ramp, reverse_gradient

logits = st.integers(1, 6).flatmap(lambda size: hnp.arrays(np.float64, size, elements=st.floats(-30, 30)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@given(source=logits, target=logits)
def test_confusion_is_the_cross_entropy_of_both_domains(source: np.ndarray, target: np.ndarray) -> None:
    expected = -np.log(sigmoid(source)).mean() / 2 - np.log(sigmoid(-target)).mean() / 2  # 1 − σ(x) = σ(−x)
    loss = domain_confusion(torch.from_numpy(source), torch.from_numpy(target))
    assert loss.item() == pytest.approx(float(expected), abs=1e-12)


@given(source=logits, target=logits, seed=st.integers(0, 10_000))
def test_weights_are_shares_within_their_domain(source: np.ndarray, target: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    of_source, of_target = random.uniform(0.1, 3, source.shape), random.uniform(0.1, 3, target.shape)
    expected = (
        -(of_source / of_source.sum() * np.log(sigmoid(source))).sum() / 2
        - (of_target / of_target.sum() * np.log(sigmoid(-target))).sum() / 2
    )
    weighted = domain_confusion(*map(torch.from_numpy, (source, target, of_source, of_target)))
    assert float(weighted) == pytest.approx(float(expected), abs=1e-12)
    scaled = domain_confusion(*map(torch.from_numpy, (source, target, 9 * of_source, 2 * of_target)))
    assert float(scaled) == pytest.approx(float(weighted))


def test_an_undecided_discriminator_has_a_loss_of_ln_2() -> None:
    assert float(domain_confusion(torch.zeros(3), torch.zeros(5))) == pytest.approx(log(2))


def test_a_domain_counts_half_however_many_samples_it_has() -> None:
    source, target = torch.tensor([-2.0]), torch.tensor([1.0])
    assert float(domain_confusion(source, target)) == pytest.approx(float(domain_confusion(source, target.repeat(9))))


def test_saturated_logits_give_a_finite_loss_and_gradient() -> None:
    source, target = (torch.tensor([sign * 1e4], requires_grad=True) for sign in (-1, 1))
    loss = domain_confusion(source, target)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    assert source.grad.item() == pytest.approx(-0.5)
    assert target.grad.item() == pytest.approx(0.5)


def test_the_gradient_of_confusion_is_its_derivative(generator: Generator) -> None:
    inputs = [torch.randn(size, dtype=torch.float64, generator=generator).requires_grad_() for size in (3, 2)]
    assert torch.autograd.gradcheck(domain_confusion, inputs)
    weights = [torch.rand(size, dtype=torch.float64, generator=generator) for size in (3, 2)]
    assert torch.autograd.gradcheck(lambda one, other: domain_confusion(one, other, *weights), inputs)


@pytest.mark.parametrize("coefficient", [0.0, 0.3, 1.0, 2.5])
def test_reversal_keeps_the_value_and_reverses_the_gradient(coefficient: float, generator: Generator) -> None:
    features = torch.randn(3, 4, generator=generator).requires_grad_()

    def loss(values: Tensor) -> Tensor:
        return (values.sin() * torch.arange(12.0).reshape(3, 4)).sum()

    (plain,) = torch.autograd.grad(loss(features), features)
    (reversed_,) = torch.autograd.grad(loss(reverse_gradient(features, coefficient)), features)
    assert torch.equal(reverse_gradient(features, coefficient), features)
    torch.testing.assert_close(reversed_, -coefficient * plain)


def test_two_reversals_cancel(generator: Generator) -> None:
    features = torch.randn(3, generator=generator).requires_grad_()
    twice = reverse_gradient(reverse_gradient(features, 1.0), 1.0)
    assert torch.equal(*(torch.autograd.grad((each**3).sum(), features)[0] for each in (twice, features)))


@given(progress=st.floats(0, 1), ceiling=st.floats(0, 5))
def test_the_ramp_matches_its_formula(progress: float, ceiling: float) -> None:
    assert ramp(progress, ceiling) == pytest.approx(ceiling * (2 / (1 + exp(-10 * progress)) - 1))


def test_the_ramp_starts_at_zero_rises_and_ends_just_under_its_ceiling() -> None:
    values = [ramp(step / 50, 0.1) for step in range(51)]
    assert values[0] == 0
    assert values == sorted(values)
    assert len(set(values)) == 51
    assert values[-1] == pytest.approx(0.1, rel=1e-4)
    assert values[-1] < 0.1
