"""CORAL against the definition of covariance, its closed forms and its derivative."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from crodobo.losses import coral


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed), dtype=torch.float64)


def covariance(batch: np.ndarray) -> np.ndarray:
    """Entry by entry: Σ_n (x_ni − x̄_i)(x_nj − x̄_j) / (n − 1)."""
    count, width = batch.shape
    result = np.zeros((width, width))
    for i in range(width):
        for j in range(width):
            pairs = (batch[:, i] - batch[:, i].mean()) * (batch[:, j] - batch[:, j].mean())
            result[i, j] = pairs.sum() / (count - 1)
    return result


@given(source=st.integers(2, 7), target=st.integers(2, 7), width=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_it_matches_the_definition(source: int, target: int, width: int, seed: int) -> None:
    one, other = draw(seed, source, width), 2 * draw(seed + 1, target, width) - 1
    difference = covariance(one.numpy()) - covariance(other.numpy())
    assert float(coral(one, other)) == pytest.approx((difference**2).sum() / (4 * width**2), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
def test_data_scaled_by_a_has_a_closed_form(scale: float) -> None:
    """Cov(a·X) = a²·Cov(X), so the loss is (a² − 1)² ‖C‖²_F / 4d²."""
    batch = draw(0, 6, 3)
    expected = (scale**2 - 1) ** 2 * (covariance(batch.numpy()) ** 2).sum() / (4 * 9)
    assert float(coral(scale * batch, batch)) == pytest.approx(expected)


def test_it_is_symmetric_and_ignores_shift_and_order() -> None:
    one, other = draw(1, 5, 3), 2 * draw(2, 4, 3)
    value = float(coral(one, other))
    assert value > 0
    assert float(coral(other, one)) == pytest.approx(value)
    assert float(coral(one.flip(0) + 7, other)) == pytest.approx(value)
    assert float(coral(one, one.flip(0))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("source", "target"), [(1, 4), (4, 1), (1, 1)])
def test_a_batch_of_one_has_no_covariance(source: int, target: int) -> None:
    one, other = draw(3, source, 3).requires_grad_(), draw(4, target, 3).requires_grad_()
    value = coral(one, other)
    value.backward()
    assert value.item() == 0
    assert not one.grad.any()
    assert not other.grad.any()


def test_its_gradient_is_the_derivative() -> None:
    assert torch.autograd.gradcheck(coral, (draw(5, 4, 3).requires_grad_(), draw(6, 3, 3).requires_grad_()))
