"""SHOT: its centroids against numpy, its step by hand, its frozen classifier."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crodobo import Query, Source, offline
from crodobo.methods.shot import SHOT, centroid_labels
from crodobo.nn.network import Encoded


def nearest_centroids(features: np.ndarray, logits: np.ndarray) -> list[int]:
    """For each sample the predicted class with the largest cosine, in two rounds."""
    extended = [np.append(row, 1.0) / np.linalg.norm(np.append(row, 1.0)) for row in features]
    share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    predicted = set(logits.argmax(axis=1).tolist())
    labels: list[int] = []
    for _ in range(2):
        centroids = {c: sum(w * row for w, row in zip(share[:, c], extended, strict=True)) for c in predicted}
        centroids = {c: centre / max(np.linalg.norm(centre), 1e-12) for c, centre in centroids.items()}
        labels = [max(centroids, key=lambda c, row=row: float(row @ centroids[c])) for row in extended]
        share = np.eye(logits.shape[1])[labels]
    return labels


@given(size=st.integers(1, 12), width=st.integers(1, 5), classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_labels_come_from_the_nearest_centroid(size: int, width: int, classes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    features, logits = random.normal(size=(size, width)), random.normal(size=(size, classes)) * 2
    torch.set_default_dtype(torch.float64)
    try:
        labels = centroid_labels(Encoded(torch.from_numpy(features), torch.from_numpy(logits)))
    finally:
        torch.set_default_dtype(torch.float32)
    assert labels.tolist() == nearest_centroids(features, logits)


def test_a_class_that_is_never_predicted_is_never_assigned() -> None:
    logits = torch.tensor([[2.0, 1.9, 0.0], [1.0, 0.9, 2.0], [2.0, 1.9, 0.0]])
    labels = centroid_labels(Encoded(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]]), logits))
    assert 1 not in labels.tolist()


@pytest.mark.usefixtures("_in_double_precision")
def test_a_step_matches_the_formula(
    source: Source, make_images: Callable[..., Tensor], by_hand: Any, views_of: Any
) -> None:
    method, images = SHOT(source, warmup=0, threads=1, steps=1, burn="off"), make_images(6)
    method.survey(images)
    hand, weak = by_hand(method), method.augment.weak(images[[4, 0, 3]], views_of(method))
    learned = [*hand.network.backbone.parameters(), *hand.network.bottleneck.parameters()]
    optimiser = hand.adam(learned)
    labels = method.pseudo_labels[0][[4, 0, 3]]
    p = torch.softmax(hand.network(weak), 1)
    unsure, spread = -(p * p.log()).sum(1).mean(), -(p.mean(0) * p.mean(0).log()).sum()
    (unsure - spread - 0.3 * p[torch.arange(3), labels].log().mean()).backward()
    optimiser.step()
    with Query(images[[4, 0, 3]]) as query:
        method.revisit(query, query.pixels(), torch.tensor([4, 0, 3]))
    for (name, ours), theirs in zip(
        method.learners[0].network.named_parameters(), hand.network.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)
        if moments := optimiser.state.get(theirs):  # Adam's first step shows only the sign of the gradient
            gradient = method.learners[0].optimiser.state[ours]["exp_avg"]
            torch.testing.assert_close(gradient, moments["exp_avg"], atol=1e-10, rtol=1e-6, msg=name)


def test_only_the_classifier_stays_unchanged(source: Source, make_images: Callable[..., Tensor]) -> None:
    method = SHOT(source, learners=2, warmup=2, warmup_batch=8, threads=1, steps=1, burn="off")
    before = [
        {name: weight.clone() for name, weight in learner.network.named_parameters()} for learner in method.learners
    ]
    offline(method, make_images(12), torch.arange(12) % 4, size=6, epochs=1)
    for learner, weights in zip(method.learners, before, strict=True):
        for name, weight in learner.network.named_parameters():
            assert torch.equal(weight, weights[name]) == name.startswith("classifier."), name


def test_the_whole_target_is_relabelled_each_epoch(source: Source, make_images: Callable[..., Tensor]) -> None:
    method, images = SHOT(source, warmup=2, warmup_batch=8, threads=1, steps=1, burn="off"), make_images(12)
    survey, given_ = method.survey, []

    def watch(images: Tensor) -> None:
        survey(images)
        expected = centroid_labels(method.learners[0].describe(images))
        assert torch.equal(method.pseudo_labels[0], expected)
        given_.append(method.pseudo_labels[0])

    method.survey = watch
    offline(method, images, torch.arange(12) % 4, size=6, epochs=3)
    assert [len(labels) for labels in given_] == [12, 12, 12]


def test_the_source_is_not_needed(
    source: Source, make_images: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = SHOT(source, warmup=1, warmup_batch=8, threads=1, steps=1, burn="off")
    monkeypatch.setattr(Source, "bootstrap", lambda *_: pytest.fail("drew from the source"))
    offline(method, make_images(6), torch.arange(6) % 4, size=6, epochs=1)
