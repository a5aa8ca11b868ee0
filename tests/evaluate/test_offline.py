"""The offline protocol: number of steps, samples, seeds, and methods without an online form."""

from collections.abc import Callable
from math import ceil
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from crodobo import Query, Source, SourceOnly, offline
from crodobo.core.prediction import Adaptation
from crodobo.errors import BadSettings, QueryBurned
from crodobo.methods import REGISTRY


class Recording(SourceOnly):
    """Learns nothing and records its calls."""

    name = "recording"

    def __init__(self, source: Source, **settings: Any) -> None:
        super().__init__(source, warmup=0, threads=1, **settings)
        self.given: list[list[int]] = []
        self.surveyed: list[int] = []
        self.progresses: list[float] = []
        self.queries: list[Query] = []
        self.target = torch.empty(0)

    def survey(self, images: Tensor) -> None:
        self.surveyed.append(len(self.given))
        self.target = images.clone()

    def revisit(self, query: Query, images: Tensor, indices: Tensor) -> Adaptation:
        torch.testing.assert_close(images, self.target[indices])
        self.given.append(indices.tolist())
        self.progresses.append(self.progress)
        self.queries.append(query)
        return Adaptation()


def make_source(size: int) -> Source:
    return Source(torch.rand(size, 1, 16, 16, generator=Generator().manual_seed(0)), torch.arange(size) % 2)


def make_target(size: int) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 1, 16, 16, generator=Generator().manual_seed(1)), torch.arange(size) % 2


@pytest.mark.parametrize(
    ("source", "target", "size"), [(4, 10, 4), (10, 4, 4), (9, 9, 3), (20, 3, 4), (4, 1, 2), (5, 7, 64)]
)
def test_an_epoch_covers_the_larger_domain(source: int, target: int, size: int) -> None:
    method = Recording(make_source(source))
    confusion = offline(method, *make_target(target), size=size, epochs=3)
    steps = ceil(max(source, target) / size)
    assert len(method.given) == 3 * steps == method.steps
    assert method.surveyed == [0, steps, 2 * steps], "the target is surveyed at the start of each epoch"
    assert confusion.samples == target
    for epoch in range(3):
        seen = [index for batch in method.given[epoch * steps : (epoch + 1) * steps] for index in batch]
        assert len(seen) == steps * size
        counts = torch.bincount(torch.tensor(seen), minlength=target)
        assert counts.min() >= 1, "every sample of the target is met in every epoch"
        assert counts.max() - counts.min() <= 1, "and none more often than it must"


def test_progress_runs_over_all_epochs() -> None:
    method = Recording(make_source(4))
    offline(method, *make_target(8), size=2, epochs=2)
    assert method.progresses == pytest.approx([n / 8 for n in range(8)])
    assert method.progress == pytest.approx(1)


def test_epochs_have_different_orders_that_depend_on_the_seed() -> None:
    runs = []
    for seed in (0, 0, 1):
        method = Recording(make_source(4))
        offline(method, *make_target(12), size=12, epochs=2, seed=seed)
        runs.append(method.given)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_the_target_is_unchanged_and_every_batch_is_burned() -> None:
    method, (images, labels) = Recording(make_source(4)), make_target(6)
    before, steps = images.clone(), []
    offline(method, images, labels, size=3, epochs=2, after_step=lambda: steps.append(len(method.given)))
    assert torch.equal(images, before)
    assert steps == [1, 2, 3, 4]
    for query in method.queries:
        with pytest.raises(QueryBurned):
            _ = query.images


def test_bytes_and_floats_give_the_same_score() -> None:
    numbers = torch.randint(256, (6, 1, 16, 16), dtype=torch.uint8, generator=Generator().manual_seed(2))
    scores = [
        offline(SourceOnly(make_source(6), warmup=0, threads=1), images, torch.arange(6) % 2, size=3, epochs=1)
        for images in (numbers, numbers.float() / 255)
    ]
    assert scores[0].counts.tolist() == scores[1].counts.tolist()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_learns_in_any_gradient_mode(mode: Callable[[], Any]) -> None:
    method = SourceOnly(make_source(4), warmup=0, threads=1)
    with mode():
        offline(method, *make_target(4), size=4, epochs=1)


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if "online" not in kind.protocols])
def test_methods_that_need_the_whole_target_are_refused_online(name: str) -> None:
    method = REGISTRY[name](make_source(4), warmup=0, threads=1, burn="off")
    before = {part: value.clone() for part, value in method.state().items()}
    with Query(make_target(3)[0]) as query, pytest.raises(BadSettings, match=f"^{name} needs the whole") as refusal:
        method.step(query)
    assert "\n" not in str(refusal.value)
    changed = [part for part, value in method.state().items() if not torch.equal(value, before[part])]
    assert set(changed) <= {"largest"}


@pytest.mark.parametrize("name", [name for name, kind in REGISTRY.items() if kind.keeps_target])
def test_methods_that_keep_target_data_are_refused_when_burning_is_on(name: str) -> None:
    with pytest.raises(BadSettings, match=f"^{name} keeps target data, .*turn burning off") as refusal:
        REGISTRY[name](make_source(4), warmup=0)
    assert "\n" not in str(refusal.value)
