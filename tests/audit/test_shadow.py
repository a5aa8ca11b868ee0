"""Shadow runs: a method that memorises is detected, others are not, and a score depends on its own sample only."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.audit.membership.findings import Finding, attack_all
from crodobo.audit.membership.inclusion import draw_members
from crodobo.audit.membership.shadow import log_probabilities, reseed, seed_of_run, stream_members
from crodobo.config import MethodSettings
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.core.source import Source
from crodobo.data import Benchmark
from crodobo.methods import Method, get_method
from crodobo.nn.learner import Learner
from crodobo.nn.learners import make_learners
from crodobo.views.augment import Augment

SETTINGS = MethodSettings(warmup=0, lr=1e-2, parallel=False, threads=1)
STEPS = 5  # of the method that memorises


def label_of(images: Tensor) -> Tensor:
    """Classes that depend on the exact pixels of a sample."""
    return (1000 * images.sum(dim=(1, 2, 3))).long() % 4


class Memoriser(Method):
    """Memorises the labels of its stream, computed from the pixels."""

    name: ClassVar[str] = "memoriser"

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        labels = label_of(images)
        for learner in self.learners:
            for _ in range(STEPS):
                learner.update(F.cross_entropy(learner.forward(images), labels))
        return Adaptation()


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    """32 targets of noise: there is no shared structure to learn."""
    random = torch.Generator().manual_seed(1)
    source = Source(torch.rand(16, 1, 16, 16, generator=random), torch.arange(16) % 4)
    images = torch.rand(32, 1, 16, 16, generator=random)
    return Benchmark("noise", "noise to noise", source, images, label_of(images), Augment(flip=False))


def run_shadow(kind: type[Method], benchmark: Benchmark, members: np.ndarray, run: int = 0) -> list[Learner]:
    draws = seed_of_run(0, run)
    learners = make_learners(benchmark.source, 1, 0, SETTINGS)
    reseed(learners, draws)
    method = kind(benchmark.source, augment=benchmark.augment, learners=learners, seed=draws, threads=1)
    chosen = torch.from_numpy(np.flatnonzero(members))
    stream_members(method, benchmark, chosen, seed=draws, size=16)
    return method.learners


def attack(kind: type[Method], benchmark: Benchmark, runs: int = 16) -> Finding:
    samples = len(benchmark.labels)
    members = np.stack([draw_members(samples, run, seed=0) for run in range(runs)])
    scores = [
        log_probabilities(run_shadow(kind, benchmark, each, run), benchmark.images, torch.arange(samples)).numpy()
        for run, each in enumerate(members)
    ]
    return attack_all(kind.name, np.stack(scores), benchmark.labels.numpy(), members)


def test_a_method_that_memorises_its_stream_is_detected(benchmark: Benchmark) -> None:
    finding = attack(Memoriser, benchmark)
    for name, attacked in finding.attacks.items():
        assert attacked.estimates["auc"].low > 0.8, name


def test_weights_of_methods_that_do_not_learn_are_independent_of_the_stream(benchmark: Benchmark) -> None:
    first, second = (draw_members(32, run, seed=0) for run in (0, 1))
    for name, same in (("source-only", True), ("no-adaptation", True), ("ent", False), ("tent", False)):
        states = [run_shadow(get_method(name), benchmark, members)[0].state() for members in (first, second)]
        assert all(states[0][key].equal(states[1][key]) for key in states[0]) == same, name


def test_a_score_does_not_depend_on_other_samples_in_the_batch(benchmark: Benchmark) -> None:
    learners = run_shadow(get_method("tent"), benchmark, draw_members(32, 0, seed=0))
    together = log_probabilities(learners, benchmark.images, torch.arange(32))
    for numbers in (torch.tensor([5]), torch.tensor([9, 5, 31])):
        alone = log_probabilities(learners, benchmark.images, numbers)
        assert torch.allclose(alone, together[numbers], atol=1e-5)
    assert torch.allclose(together.exp().sum(dim=1), torch.ones(32), atol=1e-5)


def test_two_learners_are_scored_by_their_average(benchmark: Benchmark) -> None:
    learners = make_learners(benchmark.source, 2, 0, SETTINGS)
    joint = log_probabilities(learners, benchmark.images, torch.arange(32)).exp()
    each = [log_probabilities([learner], benchmark.images, torch.arange(32)).exp() for learner in learners]
    assert torch.allclose(joint, (each[0] + each[1]) / 2, atol=1e-6)


def test_a_run_is_repeatable_and_differs_from_another_run(benchmark: Benchmark) -> None:
    members = draw_members(32, 0, seed=0)
    scores = [
        log_probabilities(run_shadow(get_method("single"), benchmark, members, run), benchmark.images, torch.arange(32))
        for run in (0, 0, 2)
    ]
    assert scores[0].equal(scores[1])
    assert not scores[0].equal(scores[2])


def test_each_pass_streams_all_members_in_another_order(benchmark: Benchmark) -> None:
    seen: list[float] = []

    class Recorder(Method):
        name: ClassVar[str] = "recorder"

        def adapt(self, query: Query, images: Tensor) -> Adaptation:
            seen.extend(images.sum(dim=(1, 2, 3)).tolist())
            return Adaptation()

    learners = make_learners(benchmark.source, 1, 0, SETTINGS)
    method = Recorder(benchmark.source, augment=benchmark.augment, learners=learners, threads=1, steps=1)
    members = torch.arange(0, 32, 2)
    record = stream_members(method, benchmark, members, seed=0, size=5, passes=2)
    assert record.queries == 8
    assert method.progress == 1
    assert sorted(seen[:16]) == sorted(seen[16:]) != seen[:16]
    assert seen[:16] != seen[16:]
    assert sorted(seen[:16]) == pytest.approx(sorted(benchmark.images[members].sum(dim=(1, 2, 3)).tolist()))
