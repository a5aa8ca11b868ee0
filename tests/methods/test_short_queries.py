"""A short query counts by its share of the largest. Adversarial methods use less momentum."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crodobo import Source, SourceOnly
from crodobo.methods import REGISTRY


@pytest.mark.usefixtures("_in_double_precision")
def test_the_loss_is_scaled_by_the_share_of_the_largest_query_so_far(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], by_hand: Any
) -> None:
    method = SourceOnly(source, warmup=0, threads=1, steps=1)
    hand = by_hand(method)
    optimiser = hand.adam(list(hand.network.parameters()))
    for size, share in ((4, 1.0), (8, 1.0), (2, 0.25), (6, 0.75)):
        batch, labels = hand.bootstrap(size)
        loss = -torch.log_softmax(hand.network(batch), 1)[torch.arange(size), labels].mean()
        optimiser.zero_grad()
        (share * loss).backward()
        optimiser.step()
        ask(method, make_images(size))
    for (name, ours), theirs in zip(
        method.learners[0].network.named_parameters(), hand.network.parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, atol=1e-8, rtol=1e-6, msg=name)
    resumed = SourceOnly(source, warmup=0, threads=1, steps=1)
    resumed.load_state(method.state())
    assert resumed.largest == 8, "and goes on from a checkpoint"


def test_a_failed_query_does_not_count_as_the_largest(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    method = SourceOnly(source, warmup=0, threads=1, steps=1)
    ask(method, make_images(4))

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(method, "adapt", fail)
        with pytest.raises(MemoryError):
            ask(method, make_images(40))
    ask(method, make_images(4))
    assert method.learners[0].share == 1


@pytest.mark.parametrize("name", ["dann", "cdan", "cdan-e", "mdd", "covid-da"])
def test_the_learner_and_its_adversary_use_the_momentum_setting(name: str, source: Source) -> None:
    kind = REGISTRY[name]
    for options, momentum in (({}, 0.5), ({"momentum": 0.2}, 0.2)):
        method = kind(source, warmup=0, threads=1, steps=1, burn="off" if kind.keeps_target else "standard", **options)
        groups = method.learners[0].optimiser.param_groups
        assert {group["betas"] for group in groups} == {(momentum, 0.999)}
        held = {id(weight) for group in groups for weight in group["params"]}
        assert {id(weight) for weight in method.learners[0].part("adversary").parameters()} <= held
