"""ConDA: its buffer against sorting, its step by hand, what it keeps and when it is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from crodobo import Source
from crodobo.errors import BadSettings
from crodobo.methods.conda import Buffer, ConDA


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), places=st.integers(1, 4), seed=st.integers(0, 10_000))
def test_the_buffer_keeps_the_most_confident_of_each_class(sizes: list[int], places: int, seed: int) -> None:
    generator = Generator().manual_seed(seed)
    buffer, seen = Buffer(classes=3, places=places, shape=(1, 2, 2)), []
    assert not buffer.filled.any()
    for size in sizes:
        images = torch.rand(size, 1, 2, 2, generator=generator)
        p = torch.softmax(3 * torch.randn(size, 3, generator=generator), 1)
        buffer.keep(images, p)
        seen += [(float(row.max()), int(row.argmax()), image) for row, image in zip(p, images, strict=True)]
    for label in range(3):
        best = sorted([each for each in seen if each[1] == label], key=lambda each: -each[0])[:places]
        assert int(buffer.filled[label].sum()) == len(best)
        kept = sorted(zip(buffer.confidence[label].tolist(), buffer.images[label], strict=True), key=lambda e: -e[0])
        for (confidence, image), (expected, _, original) in zip(kept, best, strict=False):
            assert confidence == expected
            assert torch.equal(image, original)


def test_draws_return_stored_samples_with_their_labels(generator: Generator) -> None:
    buffer = Buffer(classes=3, places=2, shape=(1, 1, 1))
    buffer.keep(torch.tensor([0.1, 0.3]).reshape(2, 1, 1, 1), torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.1, 0.9]]))
    images, labels = buffer.draw(50, generator)
    assert set(zip((10 * images).flatten().round().tolist(), labels.tolist(), strict=True)) == {(1, 1), (3, 2)}


@pytest.mark.usefixtures("_in_double_precision")
def test_steps_match_the_formula(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], by_hand: Any, views_of: Any
) -> None:
    """Queries after the first are mixed with the most confident samples of earlier ones."""
    method = ConDA(source, warmup=0, threads=1, steps=1, burn="off", buffer=8, mix_weight=0.7)
    hand, views = by_hand(method), views_of(method)
    optimiser = hand.adam([*hand.network.backbone.parameters(), *hand.network.bottleneck.parameters()])
    kept: list[tuple[float, int, Tensor]] = []
    for seed in range(3):
        images = make_images(5, seed)
        weak = method.augment.weak(images, views)
        p = torch.softmax(hand.network(weak), 1)
        loss = -(p * p.log()).sum(1).mean() + (p.mean(0) * p.mean(0).log()).sum()
        if kept:
            places = method.learners[0].part("buffer").filled.nonzero().tolist()
            held = method.learners[0].part("buffer")
            drawn = [places[n] for n in torch.randint(len(places), (5,), generator=hand.generator).tolist()]
            stored = torch.stack([held.images[label, place] for label, place in drawn])
            stored = method.augment.weak(stored, hand.generator)
            one, other = torch._standard_gamma(torch.full((2, 5), 0.75), generator=hand.generator)
            share = torch.maximum(one, other) / (one + other)
            mixed = share[:, None, None, None] * weak + (1 - share)[:, None, None, None] * stored
            logp = torch.log_softmax(hand.network(mixed), 1)
            for n in range(5):
                own, its = int(p[n].argmax()), drawn[n][0]
                loss = loss - 0.7 / 5 * (share[n] * logp[n, own] + (1 - share[n]) * logp[n, its])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        ask(method, images)
        kept += [(float(row.max()), int(row.argmax()), image) for row, image in zip(p.detach(), images, strict=True)]
        buffer = method.learners[0].part("buffer")
        for label in range(4):
            best = sorted([each for each in kept if each[1] == label], key=lambda each: -each[0])[:2]
            sure = sorted((c for c in buffer.confidence[label].tolist() if c > 0), reverse=True)
            assert sure == pytest.approx([each[0] for each in best])
    for (name, ours), theirs in zip(
        method.learners[0].network.named_parameters(), hand.network.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)
        if moments := optimiser.state.get(theirs):  # Adam's first step shows only the sign of the gradient
            gradient = method.learners[0].optimiser.state[ours]["exp_avg"]
            torch.testing.assert_close(gradient, moments["exp_avg"], atol=1e-10, rtol=1e-6, msg=name)


def test_the_classifier_stays_and_the_source_is_not_needed(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = ConDA(source, warmup=1, warmup_batch=8, threads=1, steps=1, burn="off")
    monkeypatch.setattr(Source, "bootstrap", lambda *_: pytest.fail("drew from the source"))
    network = method.learners[0].network
    before = {name: weight.clone() for name, weight in network.named_parameters()}
    for seed in range(2):
        ask(method, make_images(5, seed))
    for name, weight in network.named_parameters():
        assert torch.equal(weight, before[name]) == name.startswith("classifier."), name


def test_the_buffer_keeps_copies_of_samples_after_the_query(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method, images = ConDA(source, warmup=0, threads=1, steps=1, burn="off"), make_images(5)
    ask(method, images)
    buffer = method.learners[0].part("buffer")
    stored = {tuple(image.flatten().tolist()) for image in buffer.images[buffer.filled]}
    assert stored == {tuple(image.flatten().tolist()) for image in images}


def test_it_is_refused_where_burning_is_on(source: Source) -> None:
    with pytest.raises(BadSettings, match=r"^conda keeps target data, .*turn burning off") as refusal:
        ConDA(source, warmup=0)
    assert "\n" not in str(refusal.value)


def test_the_buffer_is_part_of_the_state(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method, other = (ConDA(source, warmup=0, threads=1, steps=1, burn="off", buffer=8, seed=seed) for seed in (0, 5))
    for seed in range(2):
        ask(method, make_images(5, seed))
    state = {name: value.clone() for name, value in method.state().items()}
    assert state["learners.0.buffer.images"].shape == (4, 2, 1, 16, 16)
    assert (state["learners.0.buffer.confidence"] > 0).any()
    other.load_state(state)
    one, two = method.learners[0].part("buffer"), other.learners[0].part("buffer")
    assert torch.equal(one.images, two.images)
    assert torch.equal(one.confidence, two.confidence)
    answers = [ask(each, make_images(5, 2)).probabilities for each in (method, other)]
    assert torch.equal(*answers)
    assert torch.equal(one.confidence, two.confidence)


def test_the_buffer_never_exceeds_its_size(source: Source) -> None:
    method = ConDA(source, warmup=0, threads=1, steps=1, burn="off", buffer=10)
    assert method.learners[0].part("buffer").confidence.numel() <= 10
