"""Drift: how far the learners' statistics have moved, for methods with and without statistics of the target."""

import pytest
import torch

from crodobo import CroDoBo, Query, Source
from crodobo.serve.points import Drift


@pytest.mark.parametrize("plain", [False, True])
def test_drift_begins_at_zero_and_follows_the_stream(source: Source, plain: bool) -> None:
    method = CroDoBo(source, learners=2, warmup=2, warmup_batch=16, threads=1, plain=plain)
    drift = Drift(method.learners)
    assert drift.of(method.learners) == 0
    moved = []
    for seed in range(3):
        with Query(torch.rand(16, 1, 16, 16, generator=torch.Generator().manual_seed(seed))) as query:
            method.step(query)
        moved.append(drift.of(method.learners))
    assert 0 < moved[0] < moved[-1]
