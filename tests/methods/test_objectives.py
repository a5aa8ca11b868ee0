"""CroDoBo's other objectives, and continual CroDoBo, against a re-derivation of every term."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Generator, Tensor

from crodobo import CroDoBo, Query, Source
from crodobo.core.source import SourceBatch
from crodobo.errors import BadSettings
from crodobo.methods.continual import Continual
from crodobo.methods.mixing import mixed_loss
from crodobo.methods.objective import PRESETS, Coefficients, Objective, assign_objectives, parse_objectives

TAU, LAM = 0.4, 0.7  # so that some pseudo-labels of a fresh network count and some do not


def softmax(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum(1, keepdim=True)


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(1).mean()


def diversity(p: Tensor) -> Tensor:
    return (p.mean(0) * p.mean(0).log()).sum()


def confident(p: Tensor, given: Tensor) -> Tensor:
    """Cross-entropy to confident labels, divided by the whole batch."""
    losses = [-row[g.argmax()].log() for row, g in zip(p, given, strict=True) if g.max() >= TAU]
    return sum(losses, torch.zeros(())) / len(p)


class Plain:
    """A step of two learners with any terms, without the package's losses, learners, mixing or engine."""

    def __init__(self, method: CroDoBo, views: Generator, terms: list[list[str]], with_source: bool) -> None:
        self.source, self.augment, self.views = method.source, method.augment, views
        self.terms, self.with_source = terms, with_source
        self.networks = [copy.deepcopy(learner.network).train() for learner in method.learners]
        self.generators = [Generator() for _ in method.learners]
        for generator, learner in zip(self.generators, method.learners, strict=True):
            generator.set_state(learner.generator.get_state())
        self.optimisers = [
            torch.optim.Adam(network.parameters(), lr=8e-4, weight_decay=5e-4, foreach=False, fused=False)
            for network in self.networks
        ]
        self.counted: list[bool] = []

    def step(self, images: Tensor) -> None:
        weak, strong = self.augment.weak(images, self.views), self.augment.strong(images, self.views)
        second = self.augment.weak(images, self.views) if any("mixmatch" in terms for terms in self.terms) else weak
        batches, on_weak, guesses = [], [], []
        for network, generator in zip(self.networks, self.generators, strict=True):
            if self.with_source:
                drawn = torch.randint(len(self.source), (len(images),), generator=generator)
                batch = self.augment.weak(self.source.images[drawn].double(), generator)
                batches.append((batch, self.source.labels[drawn]))
            on_weak.append(softmax(network(weak)))
            guesses.append((on_weak[-1].detach() + softmax(network(second)).detach()) / 2)
        for k, (network, generator, terms) in enumerate(zip(self.networks, self.generators, self.terms, strict=True)):
            other = (k + 1) % len(self.networks)  # of one learner: itself
            on_strong = softmax(network(strong))
            possible = {
                "co-supervision": lambda p=on_strong, o=other: confident(p, on_weak[o].detach()),
                "strong-entropy": lambda p=on_strong: entropy(p),
                "strong-diversity": lambda p=on_strong: LAM * diversity(p),
                "entropy": lambda k=k: entropy(on_weak[k]),
                "diversity": lambda k=k: LAM * diversity(on_weak[k]),
                "pseudo-labels": lambda k=k: confident(on_weak[k], on_weak[k].detach()),
                "mixmatch": lambda k=k, n=network, g=generator, o=other: self.mixed(
                    n, *batches[k], (weak, second), guesses[o], g
                ),
            }
            loss = sum(possible[term]() for term in terms)
            if self.with_source:
                batch, labels = batches[k]
                loss = loss - softmax(network(batch))[torch.arange(len(labels)), labels].log().mean()
            self.counted += (on_weak[other].detach().amax(1) >= TAU).tolist()
            self.optimisers[k].zero_grad()
            loss.backward()
            self.optimisers[k].step()

    def mixed(
        self, network: Any, batch: Tensor, labels: Tensor, views: tuple[Tensor, ...], guess: Tensor, draw: Generator
    ) -> Tensor:
        """MixMatch as its paper has it: T = ½, Beta(¾, ¾), squared error on the unlabelled part."""
        sharp = guess**2 / (guess**2).sum(1, keepdim=True)
        inputs = [*batch, *views[0], *views[1]]
        targets = [*torch.eye(sharp.shape[1])[labels], *sharp, *sharp]
        order = torch.randperm(len(inputs), generator=draw)
        one, other = torch._standard_gamma(torch.full((2, len(inputs)), 0.75), generator=draw)
        shares = [max(float(a / (a + b)), float(b / (a + b))) for a, b in zip(one, other, strict=True)]
        mixed_inputs = [s * inputs[n] + (1 - s) * inputs[m] for n, (m, s) in enumerate(zip(order, shares, strict=True))]
        mixed_targets = [
            s * targets[n] + (1 - s) * targets[m] for n, (m, s) in enumerate(zip(order, shares, strict=True))
        ]
        p = softmax(network(torch.stack(mixed_inputs)))
        known = sum(-(y * q.log()).sum() for y, q in zip(mixed_targets[: len(batch)], p[: len(batch)], strict=True))
        guessed = sum(((y - q) ** 2).sum() for y, q in zip(mixed_targets[len(batch) :], p[len(batch) :], strict=True))
        return known / len(batch) + guessed / (2 * len(views[0]))


OBJECTIVES = {
    "without-entropy": [["co-supervision", "diversity"]],
    "without-diversity": [["co-supervision", "entropy"]],
    "pseudo-labels-for-entropy-diversity": [["co-supervision", "pseudo-labels"]],
    "mixmatch-for-entropy-diversity": [["co-supervision", "mixmatch"]],
    "mixmatch-for-co-supervision": [["mixmatch", "entropy", "diversity"]],
    "randaugment": [["co-supervision", "strong-entropy", "strong-diversity"]],
    "mixmatch-fixmatch": [["mixmatch", "entropy", "diversity"], ["co-supervision", "entropy", "diversity"]],
    "pseudo-labels|strong-diversity + entropy": [["pseudo-labels"], ["strong-diversity", "entropy"]],
}


def assert_same_weights(method: CroDoBo, plain: Plain) -> None:
    for learner, network in zip(method.learners, plain.networks, strict=True):
        for (name, ours), theirs in zip(learner.network.named_parameters(), network.named_parameters(), strict=True):
            torch.testing.assert_close(ours, theirs[1], atol=1e-8, rtol=1e-6, msg=name)


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_steps_match_the_terms(
    objective: str, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], views_of: Any
) -> None:
    settings = {"warmup": 0, "tau": TAU, "lam": LAM, "parallel": False, "threads": 1, "steps": 1, "plain": True}
    method = CroDoBo(source, learners=2, objective=objective, **settings)
    plain = Plain(method, views_of(method), (OBJECTIVES[objective] * 2)[:2], with_source=True)
    for seed in range(2):
        images = make_images(6, seed)
        plain.step(images)
        ask(method, images)
    assert_same_weights(method, plain)
    assert 0 < sum(plain.counted) < len(plain.counted), "the threshold must let some through and hold others back"


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("learners", [1, 2])
def test_continual_steps_match_the_target_terms(
    learners: int, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], views_of: Any
) -> None:
    method = Continual(source, learners=learners, warmup=0, tau=TAU, lam=LAM, parallel=False, threads=1, steps=1)
    terms = [["co-supervision", "entropy", "diversity"]] * learners
    plain = Plain(method, views_of(method), terms, with_source=False)
    for seed in range(2):
        images = make_images(6, seed)
        plain.step(images)
        ask(method, images)
    assert_same_weights(method, plain)


@pytest.mark.parametrize("objective", ["default", "randaugment", "pseudo-labels-for-entropy-diversity"])
def test_continual_never_draws_from_the_source_during_the_stream(
    objective: str,
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = Continual(source, learners=2, warmup=1, warmup_batch=8, threads=1, steps=1, objective=objective)

    def refuse(*_: Any) -> None:
        raise AssertionError("drew from the source")

    monkeypatch.setattr(Source, "bootstrap", refuse)
    before = method.learners[0].network.bottleneck[0].weight.clone()
    for size in (6, 1):
        assert ask(method, make_images(size)).adaptation.bootstrap == ()
    assert not torch.equal(method.learners[0].network.bottleneck[0].weight, before)


@pytest.mark.parametrize("learners", [1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_accepts_queries_of_any_size(
    preset: str, learners: int, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method = CroDoBo(source, learners=learners, warmup=0, threads=1, steps=1, objective=preset, plain=True)
    for size in (13, 2, 1):
        prediction = ask(method, make_images(size))
        assert prediction.adaptation.skipped == 0
        assert prediction.probabilities.isfinite().all()
        assert [len(drawn) for drawn in prediction.adaptation.bootstrap] == [size] * learners


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_equals_its_terms(preset: str) -> None:
    assert parse_objectives(f" {preset} ") == parse_objectives(PRESETS[preset])


def test_nothing_of_a_mixed_query_remains(source: Source, make_images: Callable[..., Tensor]) -> None:
    method = CroDoBo(source, learners=2, warmup=0, threads=1, steps=1, objective="mixmatch", plain=True)
    with Query(make_images(5)) as query:
        own, owned = query.own, []
        query.own = lambda tensor: owned.append(own(tensor)) or owned[-1]
        method.step(query)
    # Pixels; weak, strong and second weak view; and for each learner all inputs, their partners and the mixtures.
    assert sorted(map(len, owned)) == [5, 5, 5, 5] + [15] * 6
    assert not any(tensor.any() for tensor in owned)


class Scripted:
    """A stand-in for a learner that records its inputs and returns logits from a table."""

    def __init__(self, logits: Tensor) -> None:
        self.generator, self.logits, self.seen = Generator().manual_seed(3), logits, torch.empty(0)

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen = inputs
        return self.logits


@pytest.mark.parametrize(("labelled", "query", "classes"), [(5, 5, 3), (1, 1, 2), (4, 2, 6)])
def test_mixtures_and_their_targets_against_numpy(labelled: int, query: int, classes: int) -> None:
    random = np.random.default_rng(labelled)
    source, *views = (random.uniform(size=(n, 1, 4, 4)) for n in (labelled, query, query))
    labels, guess = random.integers(classes, size=labelled), random.dirichlet(np.ones(classes), query)
    logits = random.normal(size=(labelled + 2 * query, classes))
    learner = Scripted(torch.from_numpy(logits))
    drawn = SourceBatch(torch.from_numpy(source), torch.from_numpy(labels), torch.arange(labelled))
    loss = mixed_loss(learner, drawn, tuple(map(torch.from_numpy, views)), torch.from_numpy(guess), lambda each: each)

    draw, count = Generator().manual_seed(3), labelled + 2 * query
    order = torch.randperm(count, generator=draw).numpy()
    gammas = torch._standard_gamma(torch.full((2, count), 0.75), generator=draw).numpy().astype(np.float64)
    share = np.maximum(gammas[0], gammas[1]) / gammas.sum(axis=0)
    inputs = np.concatenate([source, *views])
    sharp = guess**2 / (guess**2).sum(axis=1, keepdims=True)
    targets = np.concatenate([np.eye(classes)[labels], sharp, sharp])
    mixed = share[:, None, None, None] * inputs + (1 - share)[:, None, None, None] * inputs[order]
    wanted = share[:, None] * targets + (1 - share)[:, None] * targets[order]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    expected = -(wanted * np.log(p))[:labelled].sum() / labelled + ((wanted - p) ** 2)[labelled:].sum() / (2 * query)
    np.testing.assert_allclose(learner.seen.numpy(), mixed, rtol=1e-5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_mixmatch_labels_are_the_peers_mean_over_both_weak_views(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = CroDoBo(source, learners=3, warmup=0, parallel=False, threads=1, steps=1, objective="mixmatch", plain=True)
    seen: dict[int, list[Tensor]] = {}
    for number, learner in enumerate(method.learners):

        def watch(images: Tensor, number: int = number, forward: Callable[..., Tensor] = learner.forward) -> Tensor:
            logits = forward(images)
            seen.setdefault(number, []).append(softmax(logits.detach()))
            return logits

        monkeypatch.setattr(learner, "forward", watch)
    guesses = []

    def keep(learner: Any, source: Any, views: tuple[Tensor, Tensor], guess: Tensor, own: Any) -> Tensor:
        assert not torch.equal(*views), "the views are two"
        guesses.append(guess)
        return mixed_loss(learner, source, views, guess, own)

    monkeypatch.setattr("crodobo.methods.crodobo.mixed_loss", keep)
    ask(method, make_images(5))
    # Each learner's forwards: its source batch, the first weak view, the second, and the mixtures.
    assert [len(probabilities) for probabilities in seen.values()] == [4, 4, 4]
    for number, guess in enumerate(guesses):
        others = [(seen[peer][1] + seen[peer][2]) / 2 for peer in range(3) if peer != number]
        torch.testing.assert_close(guess, (others[0] + others[1]) / 2)


def test_pseudo_labels_are_the_learners_own_confident_predictions() -> None:
    logits = torch.log(torch.tensor([[0.96, 0.02, 0.02], [0.6, 0.3, 0.1], [0.01, 0.01, 0.98]])).requires_grad_()
    loss = Objective(("pseudo-labels",)).weak(logits, Coefficients(tau=0.95, lam=0.4))
    assert loss.item() == pytest.approx(-(np.log(0.96) + np.log(0.98)) / 3, abs=1e-6)
    loss.backward()
    torch.testing.assert_close(logits.grad[1], torch.zeros(3))
    torch.testing.assert_close(logits.grad[0], torch.tensor([-0.04, 0.02, 0.02]) / 3)


def test_strong_terms_use_only_the_strong_view() -> None:
    objective, weights = Objective(("strong-entropy", "strong-diversity")), Coefficients(tau=0.95, lam=0.5)
    logits, peer = torch.log(torch.tensor([[0.9, 0.1], [0.3, 0.7]])), torch.full((2, 2), 0.5)
    assert float(objective.weak(logits, weights)) == 0
    expected = entropy(softmax(logits)) + 0.5 * diversity(softmax(logits))
    assert float(objective.strong(logits, peer, weights)) == pytest.approx(float(expected))
    assert objective.sees_strong
    assert not objective.mixes


def test_objectives_are_assigned_to_learners_in_turn() -> None:
    both = parse_objectives("mixmatch + entropy | co-supervision")
    assert [each.terms for each in assign_objectives(both, 3)] == [
        ("mixmatch", "entropy"),
        ("co-supervision",),
        ("mixmatch", "entropy"),
    ]


@pytest.mark.parametrize("kind", [CroDoBo, Continual])
@pytest.mark.parametrize(
    ("objective", "reason"),
    [
        ("entropy + sharpness", "there is no term 'sharpness'; the terms are co-supervision"),
        ("entropy + diversity + entropy", "the term entropy is given twice"),
        ("entropy | diversity + diversity", "the term diversity is given twice"),
        ("", "there is no term ''"),
        ("entropy +", "there is no term ''"),
        ("default + entropy", "there is no term 'default'"),
    ],
)
def test_an_invalid_objective_is_refused(kind: type[CroDoBo], objective: str, reason: str, source: Source) -> None:
    with pytest.raises(BadSettings) as refusal:
        kind(source, warmup=0, objective=objective)
    assert reason in str(refusal.value)
    assert str(refusal.value).startswith(f"objective cannot be {objective}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("objective", ["mixmatch", "entropy | mixmatch", "mixmatch-fixmatch"])
def test_mixmatch_is_refused_without_the_source(objective: str, source: Source) -> None:
    with pytest.raises(BadSettings, match="mixmatch needs the source, which this method does not use") as refusal:
        Continual(source, warmup=0, objective=objective)
    assert "\n" not in str(refusal.value)
