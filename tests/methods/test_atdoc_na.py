"""ATDOC-NA: its vote against brute force, its weight's ramp, its step and its bank."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crodobo import Query, Source
from crodobo.methods.atdoc_na import ATDOCNA, Bank, vote


def neighbours_mean(
    features: np.ndarray, bank: np.ndarray, p: np.ndarray, indices: list[int], count: int
) -> np.ndarray:
    """For each sample, sort all others by cosine and average the predictions of the first few."""
    rows = []
    for feature, own in zip(features, indices, strict=True):
        others = [n for n in range(len(bank)) if n != own]
        others.sort(key=lambda n, feature=feature: -float(feature @ bank[n]))
        rows.append(p[others[:count]].mean(axis=0))
    return np.array(rows)


@given(size=st.integers(2, 10), batch=st.integers(1, 10), neighbours=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_the_vote_matches_brute_force(size: int, batch: int, neighbours: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    bank, features = random.normal(size=(size, 3)), random.normal(size=(batch, 3))
    bank /= np.linalg.norm(bank, axis=1, keepdims=True)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    p, indices = random.dirichlet(np.ones(4), size), random.integers(size, size=batch)
    ours = vote(
        torch.from_numpy(features),
        Bank(torch.from_numpy(bank), torch.from_numpy(p)),
        torch.from_numpy(indices),
        neighbours,
    )
    np.testing.assert_allclose(ours.numpy(), neighbours_mean(features, bank, p, indices.tolist(), neighbours))


def test_a_sample_has_no_vote_on_itself() -> None:
    bank = Bank(torch.eye(3), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]))
    assert vote(torch.eye(3), bank, torch.arange(3), neighbours=1)[0].tolist() == [0, 1]


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("steps", [0, 4, 20])
def test_a_step_matches_the_formula(
    steps: int, source: Source, make_images: Callable[..., Tensor], by_hand: Any, views_of: Any
) -> None:
    """The weight of the vote rises from 0 to 0.2."""
    method, images = ATDOCNA(source, warmup=0, threads=1, steps=1, burn="off"), make_images(9)
    method.expect(10)
    method.steps = steps
    method.survey(images)
    hand, drawn = by_hand(method), torch.tensor([5, 0, 7, 2])
    bank = [each.numpy().copy() for each in method.banks[0]]
    described = method.learners[0].describe(images)
    norms = described.features.norm(dim=1, keepdim=True)
    np.testing.assert_allclose(bank[0], (described.features / norms).numpy())
    np.testing.assert_allclose(bank[1], torch.softmax(described.logits, 1).numpy())

    weak = method.augment.weak(images[drawn], views_of(method))
    batch, labels = hand.bootstrap(4)
    known = torch.log_softmax(hand.network(batch), 1)[torch.arange(4), labels]
    features = hand.network.encode(weak).features
    p = torch.softmax(hand.network.classifier(features), 1)
    normed = (features / features.norm(dim=1, keepdim=True)).detach().numpy()
    votes = torch.from_numpy(neighbours_mean(normed, *bank, drawn.tolist(), 5))
    weights = votes.amax(1) / votes.amax(1).sum()
    aligned = -(weights * p[torch.arange(4), votes.argmax(1)].log()).sum()
    optimiser = hand.adam(list(hand.network.parameters()))
    (-known.mean() + 0.2 * min(1.0, steps / 10) * aligned).backward()
    optimiser.step()

    with Query(images[drawn]) as query:
        assert method.revisit(query, query.pixels(), drawn).skipped == 0
    for (name, ours), theirs in zip(
        method.learners[0].network.named_parameters(), hand.network.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)
        if moments := optimiser.state.get(theirs):  # Adam's first step shows only the sign of the gradient
            gradient = method.learners[0].optimiser.state[ours]["exp_avg"]
            torch.testing.assert_close(gradient, moments["exp_avg"], atol=1e-10, rtol=1e-6, msg=name)
    bank[0][drawn], bank[1][drawn] = normed, p.detach().numpy()
    for ours, theirs in zip(method.banks[0], bank, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-7, atol=1e-12)


def test_the_bank_is_filled_once_and_then_updated(source: Source, make_images: Callable[..., Tensor]) -> None:
    method, images = ATDOCNA(source, learners=2, warmup=0, threads=1, steps=1, burn="off"), make_images(6)
    method.survey(images)
    assert [tuple(each.features.shape) for each in method.banks] == [(6, 256), (6, 256)]
    assert not torch.equal(method.banks[0].features, method.banks[1].features), "learners have banks of their own"
    first = method.banks
    method.survey(images)
    assert method.banks is first
