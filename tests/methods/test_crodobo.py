"""One CroDoBo step against a plain re-derivation with autograd."""

import copy

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Augment, CroDoBo, Query, Single, Source
from crodobo.methods.crodobo import average_of_peers
from crodobo.nn.network import Network

IDENTITY = Augment(margin=0, operations=0)


def make_source() -> Source:
    images = torch.randint(256, (60, 1, 16, 16), dtype=torch.uint8, generator=Generator().manual_seed(5))
    return Source(images, torch.arange(60) % 3)


def softmax(logits: Tensor) -> Tensor:
    shifted = (logits - logits.amax(1, keepdim=True)).exp()
    return shifted / shifted.sum(1, keepdim=True)


def adam(weights: list[Tensor], gradients: list[Tensor], moments: list[list[Tensor]], step: int, lr: float) -> None:
    """Adam with weight decay in the gradient, written out from its definition."""
    for weight, gradient, (first, second) in zip(weights, gradients, moments, strict=True):
        gradient = gradient + 5e-4 * weight
        first.copy_(0.9 * first + 0.1 * gradient)
        second.copy_(0.999 * second + 0.001 * gradient**2)
        weight -= lr * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)


class Plain:
    """CroDoBo from its formulas, without the package's losses, learners and engine."""

    def __init__(self, method: CroDoBo) -> None:
        self.networks: list[Network] = [copy.deepcopy(learner.network) for learner in method.learners]
        self.generators = [Generator() for _ in method.learners]
        for generator, learner in zip(self.generators, method.learners, strict=True):
            generator.set_state(learner.generator.get_state())
        self.moments = [
            [[torch.zeros_like(w), torch.zeros_like(w)] for w in network.parameters()] for network in self.networks
        ]
        self.source, self.settings, self.steps = method.source, method.settings, 0

    def step(self, images: Tensor) -> None:
        self.steps += 1
        size, tau, lam = len(images), self.settings.tau, self.settings.lam
        source_losses, weak = [], []
        for network, generator in zip(self.networks, self.generators, strict=True):
            network.train()
            drawn = torch.randint(len(self.source), (size,), generator=generator)
            p = softmax(network(self.source.images[drawn].double() / 255))
            source_losses.append(-p[torch.arange(size), self.source.labels[drawn]].log().mean())
            weak.append(softmax(network(images)))
        for k, network in enumerate(self.networks):
            others = [weak[j].detach() for j in range(len(weak)) if j != k] or [weak[k].detach()]
            peer = sum(others) / len(others)
            strong = softmax(network(images))
            co = sum(
                -strong[b, peer[b].argmax()].log() for b in range(size) if peer[b].max() >= tau
            )  # over the confident ones alone, divided by the whole batch
            mean = weak[k].mean(0)
            entropy = -(weak[k] * weak[k].log()).sum(1).mean()
            loss = source_losses[k] + co / size + entropy + lam * (mean * mean.log()).sum()
            weights = list(network.parameters())
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                adam(weights, list(gradients), self.moments[k], self.steps, self.settings.lr)


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("learners", [1, 2, 3])
def test_three_steps_match_a_plain_derivation(learners: int) -> None:
    method = CroDoBo(
        make_source(), learners=learners, warmup=0, tau=0.5, lam=0.7, augment=IDENTITY, threads=1, steps=1, plain=True
    )
    plain = Plain(method)
    kept = []
    for seed in range(3):
        images = torch.rand(8, 1, 16, 16, generator=Generator().manual_seed(seed))
        with Query(images.clone()) as query:
            kept.append(method.step(query).adaptation.kept)
        plain.step(images)
    assert 0 < sum(kept) < 3, "the threshold must let some pseudo-labels through and hold others back"
    for learner, network in zip(method.learners, plain.networks, strict=True):
        for (name, ours), theirs in zip(learner.network.named_parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)
        torch.testing.assert_close(learner.network.bottleneck[1].running_mean, network.bottleneck[1].running_mean)


@pytest.mark.usefixtures("_in_double_precision")
def test_pseudo_labels_are_taken_before_any_learner_is_updated() -> None:
    """Steps are large enough to change predictions, so labels taken too late would show."""
    settings = {"warmup": 0, "tau": 0.0, "lr": 0.03, "parallel": False, "plain": True}
    method = CroDoBo(make_source(), learners=2, augment=IDENTITY, **settings)
    plain = Plain(method)
    images = torch.rand(8, 1, 16, 16, generator=Generator().manual_seed(3))
    first = method.learners[0]
    before = first.predict(images).argmax(1)
    with Query(images.clone()) as query:
        method.step(query)
    assert (first.predict(images).argmax(1) != before).any(), "the update must move the first learner's labels"
    plain.step(images)
    for ours, theirs in zip(method.learners[1].network.parameters(), plain.networks[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6)


def test_the_prediction_is_the_mean_of_the_updated_learners() -> None:
    method = CroDoBo(make_source(), learners=3, warmup=2, plain=True)
    images = torch.rand(5, 1, 16, 16)
    with Query(images.clone()) as query:
        prediction = method.step(query)
    each = [learner.predict(images.contiguous(memory_format=torch.channels_last)) for learner in method.learners]
    torch.testing.assert_close(prediction.probabilities, sum(each) / 3)
    votes = torch.stack([p.argmax(1) for p in each])
    assert prediction.agreement == pytest.approx(float((votes == votes[0]).all(0).float().mean()))


def test_each_learner_draws_its_own_bootstrap() -> None:
    method = CroDoBo(make_source(), learners=3, warmup=0)
    with Query(torch.rand(16, 1, 16, 16)) as query:
        bootstrap = method.step(query).adaptation.bootstrap
    assert [len(drawn) for drawn in bootstrap] == [16, 16, 16]
    assert len({tuple(drawn.tolist()) for drawn in bootstrap}) == 3


def test_learners_share_no_weights() -> None:
    method = CroDoBo(make_source(), learners=2, warmup=0)
    first, second = (dict(learner.network.named_parameters()) for learner in method.learners)
    assert not {w.data_ptr() for w in first.values()} & {w.data_ptr() for w in second.values()}
    assert any(not torch.equal(first[name], second[name]) for name in first), "learners start diverse"


def test_single_is_crodobo_with_one_learner() -> None:
    images = torch.rand(6, 1, 16, 16)
    answers = []
    for kind in (CroDoBo, Single):
        method = kind(make_source(), learners=1, warmup=2, threads=1, steps=1, plain=True)
        with Query(images.clone()) as query:
            answers.append(method.step(query).probabilities)
    assert torch.equal(*answers)


def test_a_threshold_of_one_keeps_no_uncertain_pseudo_label() -> None:
    method = CroDoBo(make_source(), learners=2, warmup=0, tau=1.0, plain=True)
    with Query(torch.rand(6, 1, 16, 16)) as query:
        assert method.step(query).adaptation.kept == 0


def test_the_peers_of_two_learners_are_each_other() -> None:
    u, v = torch.rand(4, 3), torch.rand(4, 3)
    of_u, of_v = average_of_peers([u, v])
    assert torch.equal(of_u, v)
    assert torch.equal(of_v, u)
