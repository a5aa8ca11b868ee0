"""The losses against values calculated by hand, a second formulation, and their derivatives."""

from collections.abc import Callable
from functools import partial
from math import log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from crodobo.losses import co_supervision, diversity, entropies, entropy

shapes = st.tuples(st.integers(1, 6), st.integers(2, 5))
batches = shapes.flatmap(lambda shape: hnp.arrays(np.float64, shape, elements=st.floats(-20, 20)))
pairs = shapes.flatmap(
    lambda shape: st.tuples(
        *[hnp.arrays(np.float64, shape, elements=st.floats(-9, 9))] * 2,
    )
)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def plogp(p: np.ndarray) -> np.ndarray:
    return np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0)


def logits_of(*rows: list[float]) -> Tensor:
    return torch.log(torch.tensor(rows, dtype=torch.float64))


def test_entropy_by_hand() -> None:
    certain_and_torn = logits_of([0.25, 0.75], [0.5, 0.5])
    by_hand = (-(0.25 * log(0.25) + 0.75 * log(0.75)) + log(2)) / 2
    assert float(entropy(certain_and_torn)) == pytest.approx(by_hand)


def test_the_entropy_of_uniform_predictions_is_ln_c() -> None:
    assert float(entropy(torch.zeros(3, 7))) == pytest.approx(log(7), rel=1e-6)


def test_diversity_by_hand() -> None:
    mean_is_half_half = logits_of([0.9, 0.1], [0.1, 0.9])
    assert float(diversity(mean_is_half_half)) == pytest.approx(-log(2), abs=1e-7)
    mean_is_one_in_four = logits_of([0.4, 0.6], [0.1, 0.9])
    assert float(diversity(mean_is_one_in_four)) == pytest.approx(0.25 * log(0.25) + 0.75 * log(0.75), abs=1e-7)


def test_diversity_falls_as_the_predictions_spread() -> None:
    together, spread = logits_of([0.9, 0.1], [0.9, 0.1]), logits_of([0.9, 0.1], [0.1, 0.9])
    assert diversity(spread) < diversity(together)
    assert entropy(spread) == pytest.approx(float(entropy(together)))


def test_co_supervision_by_hand() -> None:
    learner = logits_of([0.2, 0.8], [0.6, 0.4], [0.5, 0.5])
    peer = torch.tensor([[0.1, 0.9], [0.05, 0.95], [0.7, 0.3]])
    assert float(co_supervision(learner, peer, tau=0.8)) == pytest.approx(-(log(0.8) + log(0.4)) / 3)


def test_co_supervision_divides_by_the_whole_batch() -> None:
    learner, sure, unsure = logits_of([0.2, 0.8]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.4]])
    alone = co_supervision(learner, sure, tau=0.95)
    among_unsure = co_supervision(learner.repeat(4, 1), torch.cat([sure, *[unsure] * 3]), tau=0.95)
    assert float(among_unsure) == pytest.approx(float(alone) / 4)


@pytest.mark.parametrize("tau", [0.75, 0.95, 1.0])
def test_a_peer_exactly_at_the_threshold_counts(tau: float) -> None:
    learner = torch.zeros(1, 2)
    assert float(co_supervision(learner, torch.tensor([[tau, 1 - tau]]), tau)) == pytest.approx(log(2))


def test_a_peer_just_below_the_threshold_does_not_count() -> None:
    just_below = torch.nextafter(torch.tensor(0.75), torch.tensor(0.0))
    peer = torch.stack([just_below, 1 - just_below])[None]
    assert float(co_supervision(torch.zeros(1, 2), peer, tau=0.75)) == 0


@given(batch=batches)
def test_entropy_agrees_with_a_second_formulation(batch: np.ndarray) -> None:
    expected = -plogp(softmax(batch)).sum(axis=1).mean()
    assert float(entropy(torch.from_numpy(batch))) == pytest.approx(expected, abs=1e-9)


@given(batch=batches)
def test_the_entropy_of_each_sample_agrees_with_a_second_formulation(batch: np.ndarray) -> None:
    each = entropies(torch.from_numpy(batch))
    np.testing.assert_allclose(each.numpy(), -plogp(softmax(batch)).sum(axis=1), atol=1e-9)
    assert float(entropy(torch.from_numpy(batch))) == pytest.approx(float(each.mean()))


@given(batch=batches)
def test_diversity_agrees_with_a_second_formulation(batch: np.ndarray) -> None:
    expected = plogp(softmax(batch).mean(axis=0)).sum()
    assert float(diversity(torch.from_numpy(batch))) == pytest.approx(expected, abs=1e-6)


@given(pair=pairs)
def test_diversity_of_a_moving_mean_and_its_gradient_agree_with_the_formulas(pair: tuple[np.ndarray, ...]) -> None:
    """With m = 0.9·u + 0.1·p̄ and g = log m + 1, the gradient of Σ m log m / 0.1 is p·(g − Σ p·g) / B."""
    own, usual = softmax(pair[0]), softmax(pair[1])[0]
    mean = 0.9 * usual + 0.1 * own.mean(axis=0)
    slope = np.log(mean) + 1
    logits = torch.from_numpy(pair[0]).requires_grad_()
    loss = diversity(logits, torch.from_numpy(usual))
    loss.backward()
    assert loss.item() == pytest.approx(10 * plogp(mean).sum(), abs=1e-6)
    expected = own * (slope - (own * slope).sum(axis=1, keepdims=True)) / len(own)
    np.testing.assert_allclose(logits.grad, expected, atol=1e-7)


def test_a_moving_mean_leaves_a_burst_alone_and_pushes_back_what_is_too_frequent() -> None:
    """A query of one class is no reason to predict others, unless that class is predicted too often all the time."""
    burst = torch.tensor([[4.0, 0.0, 0.0]] * 8)

    def push(usual: Tensor | None) -> float:
        logits = burst.clone().requires_grad_()
        diversity(logits, usual).backward()
        return float(logits.grad[0, 0])

    alone, rare, frequent = push(None), push(torch.tensor([0.1, 0.45, 0.45])), push(torch.tensor([0.8, 0.1, 0.1]))
    assert rare < 0 < frequent < alone


@given(pair=pairs, tau=st.floats(0.2, 1.0))
def test_co_supervision_agrees_with_a_second_formulation(pair: tuple[np.ndarray, np.ndarray], tau: float) -> None:
    learner, peer = pair[0], softmax(pair[1])
    own = softmax(learner)
    expected = sum(
        -np.log(row[given_row.argmax()]) for row, given_row in zip(own, peer, strict=True) if given_row.max() >= tau
    ) / len(own)
    loss = co_supervision(torch.from_numpy(learner), torch.from_numpy(peer), tau)
    assert float(loss) == pytest.approx(float(expected), abs=1e-9)


@given(batch=batches)
def test_bounds(batch: np.ndarray) -> None:
    logits, most = torch.from_numpy(batch), log(batch.shape[1])
    assert -1e-9 <= float(entropy(logits)) <= most + 1e-9
    assert -most - 1e-6 <= float(diversity(logits)) <= 1e-6
    # The entropy of the mean is at least the mean of the entropies.
    assert -float(diversity(logits)) >= float(entropy(logits)) - 1e-6


SURE_PEER = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "entropy": entropy,
    "diversity": diversity,
    "diversity of a moving mean": lambda logits: diversity(logits, SURE_PEER[0].to(logits.dtype)),
    "co_supervision": partial(co_supervision, peer_probabilities=SURE_PEER, tau=0.95),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(seed=st.integers(0, 10_000))
def test_extreme_logits_give_finite_losses_and_gradients(loss: Callable[[Tensor], Tensor], seed: int) -> None:
    signs = torch.randint(3, (2, 3), generator=torch.Generator().manual_seed(seed)) - 1
    logits = (signs * 1e3).requires_grad_()
    value = loss(logits)
    value.backward()
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_are_the_derivatives(loss: Callable[[Tensor], Tensor], generator: torch.Generator) -> None:
    logits = torch.randn(2, 3, dtype=torch.float64, generator=generator).requires_grad_()
    assert torch.autograd.gradcheck(loss, logits)


def test_no_gradient_flows_into_the_peer() -> None:
    learner = torch.zeros(1, 2, requires_grad=True)
    peer_logits = torch.tensor([[5.0, 0.0]], requires_grad=True)
    co_supervision(learner, torch.softmax(peer_logits, dim=1), tau=0.5).backward()
    assert peer_logits.grad is None
    assert learner.grad is not None
    assert learner.grad.any()


def test_a_sample_that_does_not_count_gets_no_gradient() -> None:
    learner = torch.zeros(2, 2, requires_grad=True)
    co_supervision(learner, torch.tensor([[0.99, 0.01], [0.6, 0.4]]), tau=0.95).backward()
    assert learner.grad is not None
    assert learner.grad.any(dim=1).tolist() == [True, False]
