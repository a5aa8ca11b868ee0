"""Both sides of the gradient reversal in the adversarial methods, and its schedule."""

from collections.abc import Callable
from math import exp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from crodobo import Query, Source, SourceOnly
from crodobo.errors import BadQuery
from crodobo.methods import REGISTRY
from crodobo.nn.network import Encoded


def probabilities(logits: Tensor) -> Tensor:
    return logits.exp() / logits.exp().sum(1, keepdim=True)


def cross_entropy_of_domains(source: Tensor, target: Tensor, *weights: Tensor) -> Tensor:
    """Source is 1, target 0, each half: −log σ(z) and −log(1 − σ(z)), by the share of each sample."""
    of_source, of_target = weights or (torch.ones_like(source), torch.ones_like(target))
    right = (1 / (1 + torch.exp(-source))).log() * of_source / of_source.sum()
    wrong = (1 - 1 / (1 + torch.exp(-target))).log() * of_target / of_target.sum()
    return -(right.sum() + wrong.sum()) / 2


def dann(adversary: nn.Module, source: Encoded, target: Encoded) -> Tensor:
    return cross_entropy_of_domains(adversary(source.features), adversary(target.features))


def outer(encoded: Encoded) -> Tensor:
    given = probabilities(encoded.logits.detach())
    rows = [torch.outer(f, p).reshape(-1) for f, p in zip(encoded.features, given, strict=True)]
    return torch.stack(rows)


def cdan(adversary: nn.Module, source: Encoded, target: Encoded) -> Tensor:
    return cross_entropy_of_domains(adversary(outer(source)), adversary(outer(target)))


def cdan_e(adversary: nn.Module, source: Encoded, target: Encoded) -> Tensor:
    weights = []
    for encoded in (source, target):
        p = probabilities(encoded.logits.detach())
        weights.append(1 + torch.exp((p * p.log()).sum(1)))
    return cross_entropy_of_domains(adversary(outer(source)), adversary(outer(target)), *weights)


def mdd(adversary: nn.Module, source: Encoded, target: Encoded) -> Tensor:
    on_source, on_target = probabilities(adversary(source.features)), probabilities(adversary(target.features))
    agreed = on_source[range(len(on_source)), source.logits.argmax(1)]
    disagreed = 1 - on_target[range(len(on_target)), target.logits.argmax(1)]
    return -4 * agreed.log().mean() - disagreed.log().mean()


ADVERSARIES = {"dann": dann, "cdan": cdan, "cdan-e": cdan_e, "mdd": mdd}
CEILINGS = {"dann": 1.0, "cdan": 1.0, "cdan-e": 1.0, "mdd": 0.1}


class Watched:
    """A step of a method up to its gradients: encodings, loss and labels. No weight changes."""

    def __init__(self, name: str, source: Source, images: Tensor, steps: int, **settings: Any) -> None:
        method = REGISTRY[name](source, warmup=0, threads=1, steps=1, **settings)
        method.expect(10)
        method.steps = steps
        learner = method.learners[0]
        self.adversary = learner.part("adversary")
        self.encoded: list[Encoded] = []
        encode = learner.encode

        def watch(batch: Tensor) -> Encoded:
            self.encoded.append(encode(batch))
            return self.encoded[-1]

        def take(loss: Tensor) -> bool:
            self.loss = loss
            return True

        learner.encode, learner.update = watch, take
        with Query(images.clone()) as query:
            self.labels = source.labels[method.adapt(query, query.pixels()).bootstrap[0]]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Gradients of a loss by the adversary's weights, then by the features of source and target."""
        inputs = [*self.adversary.parameters(), *(encoded.features for encoded in self.encoded)]
        found = torch.autograd.grad(loss, inputs, retain_graph=True, materialize_grads=True)
        return list(found)

    @property
    def known(self) -> Tensor:
        """ℓ_s."""
        return -probabilities(self.encoded[0].logits)[range(len(self.labels)), self.labels].log().mean()


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize(("steps", "settings"), [(3, {}), (7, {"weight": 0.5, "ceiling": 0.7}), (25, {})])
def test_the_adversary_gets_the_gradient_and_the_features_its_reverse(
    name: str, steps: int, settings: dict[str, float], source: Source, make_images: Callable[..., Tensor]
) -> None:
    watched = Watched(name, source, make_images(9), steps, **settings)
    assert len(watched.encoded) == 2, "source and query are separate batches"
    weight, ceiling = settings.get("weight", 1.0), settings.get("ceiling", CEILINGS[name])
    coefficient = ceiling * (2 / (1 + exp(-10 * min(1.0, steps / 10))) - 1)
    played = weight * ADVERSARIES[name](watched.adversary, *watched.encoded)
    loss, plain, known = (watched.gradients(each) for each in (watched.loss, played, watched.known))
    for ours, theirs in zip(loss[:-2], plain[:-2], strict=True):
        assert theirs.any()
        torch.testing.assert_close(ours, theirs, msg="the adversary goes down its own loss, at full size")
    for ours, of_adversary, of_source in zip(loss[-2:], plain[-2:], known[-2:], strict=True):
        assert of_adversary.any(dim=1).all()
        torch.testing.assert_close(ours - of_source, -coefficient * of_adversary)


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("name", ADVERSARIES)
def test_at_the_start_the_features_get_no_reversed_gradient(
    name: str, source: Source, make_images: Callable[..., Tensor]
) -> None:
    watched = Watched(name, source, make_images(9), steps=0)
    *of_adversary, of_source, of_query = watched.gradients(watched.loss)
    assert all(gradient.any() for gradient in of_adversary)
    assert not of_query.any()
    torch.testing.assert_close(of_source, watched.gradients(watched.known)[-2], atol=1e-15, rtol=1e-12)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_adversary_learns_and_is_reproducible(
    name: str, source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    first, second = (REGISTRY[name](source, learners=2, warmup=0, threads=1, steps=1) for _ in range(2))
    before = [
        [weight.clone() for weight in learner.part("adversary").parameters()]
        for method in (first, second)
        for learner in method.learners
    ]
    assert all(torch.equal(one, other) for one, other in zip(before[0], before[2], strict=True)), "same seed, same part"
    assert not torch.equal(before[0][0], before[1][0]), "learners have adversaries of their own"
    ask(first, make_images(6))
    for learner, weights in zip(first.learners, before[:2], strict=True):
        moved = [not torch.equal(*pair) for pair in zip(learner.part("adversary").parameters(), weights, strict=True)]
        assert all(moved)


def test_a_discriminator_learns_to_recognise_a_different_domain(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    """Without reversal the features do not hide the domain."""
    method = REGISTRY["dann"](source, warmup=5, warmup_batch=16, threads=1, steps=1, ceiling=0.0, norm="running")
    images = 1 - make_images(16)
    for _ in range(15):
        ask(method, images)
    learner = method.learners[0]
    tell = learner.part("adversary")
    with torch.no_grad():
        known, query = (tell(learner.encode(batch).features) for batch in (source.images, images))
    assert (known > 0).float().mean() > 0.8
    assert (query < 0).float().mean() > 0.8


def test_schedules_fit_a_stream_of_known_length(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method = SourceOnly(source, warmup=0, threads=1, steps=1)
    method.expect(4)
    come = [method.progress]
    for seed in range(6):
        ask(method, make_images(2, seed))
        come.append(method.progress)
    assert come == [0, 0.25, 0.5, 0.75, 1, 1, 1]


def test_schedules_take_100_queries_if_the_length_is_unknown(source: Source) -> None:
    method = SourceOnly(source, warmup=0, threads=1, steps=1)
    come = []
    for steps in (0, 1, 50, 99, 100, 101, 5000):
        method.steps = steps
        come.append(method.progress)
    assert come == [0, 0.01, 0.5, 0.99, 1, 1, 1]


def test_a_refused_query_does_not_advance_schedules(source: Source, ask: Callable[..., Any]) -> None:
    method = SourceOnly(source, warmup=0, threads=1, steps=1)
    with pytest.raises(BadQuery, match="refused"):
        ask(method, torch.full((2, 1, 16, 16), float("nan")))
    assert method.progress == 0


def test_the_schedule_continues_from_a_checkpoint(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method, other = (REGISTRY["dann"](source, warmup=0, threads=1, steps=1) for _ in range(2))
    for seed in range(3):
        ask(method, make_images(4, seed))
    other.load_state(method.state())
    assert other.progress == method.progress == pytest.approx(0.03)
