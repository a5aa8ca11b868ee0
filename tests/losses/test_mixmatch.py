"""MixMatch's sharpening, mixing and loss against plain numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

from crodobo.losses import mixmatch, mixup, sharpen
from crodobo.methods.mixing import beta

seeds = st.integers(0, 10_000)


def distributions(random: np.random.Generator, size: int, classes: int) -> np.ndarray:
    return random.dirichlet(np.ones(classes), size)


@given(size=st.integers(1, 6), classes=st.integers(2, 5), temperature=st.floats(0.2, 3), seed=seeds)
def test_sharpening_raises_and_normalises(size: int, classes: int, temperature: float, seed: int) -> None:
    given_ = distributions(np.random.default_rng(seed), size, classes)
    powers = given_ ** (1 / temperature)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(sharpen(torch.from_numpy(given_), temperature).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_sharpening_by_hand() -> None:
    """At T = ½ probabilities are squared: ¾ and ¼ become 9/10 and 1/10; T = 1 and certainty change nothing."""
    torch.testing.assert_close(sharpen(torch.tensor([[0.75, 0.25]]), 0.5), torch.tensor([[0.9, 0.1]]))
    torch.testing.assert_close(sharpen(torch.tensor([[0.7, 0.2, 0.1]]), 1.0), torch.tensor([[0.7, 0.2, 0.1]]))
    torch.testing.assert_close(sharpen(torch.tensor([[1.0, 0.0]]), 0.5), torch.tensor([[1.0, 0.0]]))


@given(shape=st.lists(st.integers(1, 4), min_size=1, max_size=4), seed=seeds)
def test_mixing_goes_sample_by_sample(shape: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    one, other, share = random.normal(size=shape), random.normal(size=shape), random.uniform(size=shape[0])
    expected = np.stack([w * a + (1 - w) * b for a, b, w in zip(one, other, share, strict=True)])
    np.testing.assert_allclose(mixup(*map(torch.from_numpy, (one, other, share))).numpy(), expected)


@given(labelled=st.integers(1, 5), unlabelled=st.integers(1, 7), classes=st.integers(2, 5), seed=seeds)
def test_the_loss_matches_its_formula(labelled: int, unlabelled: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    on_labelled, on_unlabelled = (random.normal(size=(n, classes)) * 3 for n in (labelled, unlabelled))
    labels, guesses = (distributions(random, n, classes) for n in (labelled, unlabelled))

    def probabilities(logits: np.ndarray) -> np.ndarray:
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    supervised = sum(-(y @ np.log(p)) for y, p in zip(labels, probabilities(on_labelled), strict=True)) / labelled
    squares = sum(((p - q) ** 2).sum() for p, q in zip(probabilities(on_unlabelled), guesses, strict=True))
    loss = mixmatch(*map(torch.from_numpy, (on_labelled, labels, on_unlabelled, guesses)))
    assert float(loss) == pytest.approx(supervised + squares / unlabelled, rel=1e-9)


def test_its_gradient_is_the_derivative(generator: Generator) -> None:
    logits = [torch.randn(n, 3, dtype=torch.float64, generator=generator).requires_grad_() for n in (3, 2)]
    labels, guesses = (torch.rand(n, 3, dtype=torch.float64, generator=generator).softmax(1) for n in (3, 2))
    assert torch.autograd.gradcheck(lambda one, other: mixmatch(one, labels, other, guesses), logits)


def test_shares_follow_the_larger_half_of_a_beta_distribution() -> None:
    """Against numpy's Beta(0.75, 0.75), by the largest gap between the two empirical distributions."""
    ours = np.sort(beta(20_000, Generator().manual_seed(0)).numpy())
    drawn = np.random.default_rng(0).beta(0.75, 0.75, 20_000)
    theirs = np.sort(np.maximum(drawn, 1 - drawn))
    grid = np.linspace(0.5, 1, 200)
    gap = np.abs(np.searchsorted(ours, grid) - np.searchsorted(theirs, grid)).max() / 20_000
    assert ours.min() >= 0.5
    assert ours.max() <= 1
    assert gap < 0.02  # two samples of one distribution differ by more in one case of 10,000
    assert np.array_equal(ours, np.sort(beta(20_000, Generator().manual_seed(0)).numpy()))
