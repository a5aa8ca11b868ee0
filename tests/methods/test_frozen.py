"""no-adaptation and bn-statistics: nothing changes, and they use the right statistics."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from crodobo import Source
from crodobo.methods.bn_statistics import BNStatistics
from crodobo.methods.no_adaptation import NoAdaptation


@pytest.mark.parametrize("kind", [NoAdaptation, BNStatistics])
@pytest.mark.parametrize("order", ["adapt-then-predict", "predict-then-adapt"])
def test_no_query_changes_anything(
    kind: type[NoAdaptation],
    order: str,
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    changed_since: Callable[..., list[str]],
) -> None:
    method = kind(source, learners=2, warmup=2, warmup_batch=8, threads=1, steps=1, order=order)
    before = {name: value.clone() for name, value in method.state().items()}
    for size in (6, 2, 1):
        ask(method, make_images(size))
    assert changed_since(method, before) == []


def test_no_adaptation_is_the_network_in_eval_mode(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    method, images = NoAdaptation(source, warmup=3, warmup_batch=8, threads=1, steps=1), make_images(9)
    prediction = ask(method, images)
    with torch.no_grad():
        expected = torch.softmax(method.learners[0].network.eval()(images), 1)
    torch.testing.assert_close(prediction.probabilities, expected)
    one_by_one = torch.cat([ask(method, images[n : n + 1]).probabilities for n in range(9)])
    torch.testing.assert_close(one_by_one, expected, msg="a sample's prediction does not depend on the others")


@pytest.mark.usefixtures("_in_double_precision")
@pytest.mark.parametrize("size", [9, 2])
def test_bn_statistics_normalises_with_the_mean_and_variance_of_the_query(
    size: int,
    source: Source,
    make_images: Callable[..., Tensor],
    ask: Callable[..., Any],
    with_query_statistics: Callable[..., Tensor],
) -> None:
    method, images = BNStatistics(source, warmup=3, warmup_batch=8, threads=1, steps=1), make_images(size)
    expected = with_query_statistics(method.learners[0].network, images)
    torch.testing.assert_close(ask(method, images).probabilities, expected)


def test_a_query_of_one_is_predicted_as_without_adaptation(
    source: Source, make_images: Callable[..., Tensor], ask: Callable[..., Any]
) -> None:
    answers = [
        ask(kind(source, warmup=3, warmup_batch=8, threads=1, steps=1), make_images(1)).probabilities
        for kind in (NoAdaptation, BNStatistics)
    ]
    assert torch.equal(*answers)
