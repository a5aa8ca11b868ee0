"""Warm starts are stored to the bit, and one that does not fit is refused."""

import os
from pathlib import Path

import pytest
import torch

from crodobo import CroDoBo, SourceOnly
from crodobo.config import MethodSettings
from crodobo.core.source import Source
from crodobo.data import Benchmark
from crodobo.engine import Sequence
from crodobo.errors import BadCheckpoint
from crodobo.nn.learner import Learner
from crodobo.nn.learners import warm_up
from crodobo.session.warm_start import load_warm_start, make_method, save_warm_start, warm_learners
from crodobo.views.augment import Augment

SETTINGS = MethodSettings(learners=2, warmup=3, warmup_batch=8, seed=5, threads=1)


@pytest.fixture(scope="module")
def benchmark(source: Source) -> Benchmark:
    return Benchmark("quarters", "four quarters", source, source.images.clone(), source.labels, Augment())


@pytest.fixture(scope="module")
def stored(benchmark: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Learner]]:
    """A file, and the learners that were written to it."""
    path = tmp_path_factory.mktemp("warm") / "seed5.safetensors"
    learners, seconds = warm_learners(benchmark, SETTINGS)
    save_warm_start(path, benchmark, learners, SETTINGS, seconds + 1)
    return path, learners


def check_equal(here: Learner, there: Learner) -> None:
    """Whether learners are equal, apart from statistics of the target, which only some methods keep."""
    states = [
        {name: value for name, value in learner.state().items() if not name.startswith("target.")}
        for learner in (here, there)
    ]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.dtype == states[1][name].dtype
        assert torch.equal(value, states[1][name]), name


def test_loaded_learners_equal_the_stored_ones_to_the_bit(
    stored: tuple[Path, list[Learner]], benchmark: Benchmark
) -> None:
    path, learners = stored
    loaded, seconds = load_warm_start(path, benchmark, SETTINGS)
    assert len(loaded) == 2
    assert seconds > 1
    for here, there in zip(loaded, learners, strict=True):
        check_equal(here, there)
    assert any(name.startswith("optimiser.") for name in loaded[0].state()), "Adam's moments are part of it"
    images = benchmark.images.float()
    assert torch.equal(loaded[1].predict(images), learners[1].predict(images))


def test_loaded_learners_continue_like_the_stored_ones(
    stored: tuple[Path, list[Learner]], benchmark: Benchmark
) -> None:
    fresh, _ = warm_learners(benchmark, SETTINGS)
    loaded, _ = load_warm_start(stored[0], benchmark, SETTINGS)
    for here, there in zip(loaded, fresh, strict=True):
        warm_up([here, there], Sequence(1), benchmark.source, benchmark.augment)
        check_equal(here, there)


def test_fewer_learners_are_the_first_ones(stored: tuple[Path, list[Learner]], benchmark: Benchmark) -> None:
    path, learners = stored
    loaded, _ = load_warm_start(path, benchmark, SETTINGS.model_copy(update={"learners": 1}))
    assert len(loaded) == 1
    check_equal(loaded[0], learners[0])


def test_methods_with_different_norms_share_a_warm_start(
    stored: tuple[Path, list[Learner]], benchmark: Benchmark
) -> None:
    for norm in ("running", "query", "mixed"):
        loaded, _ = load_warm_start(stored[0], benchmark, SETTINGS.model_copy(update={"norm": norm}))
        check_equal(loaded[0], stored[1][0])
        assert loaded[0].settings.norm == norm
    loaded, _ = load_warm_start(stored[0], benchmark, SETTINGS.model_copy(update={"running_weight": 0.1}))
    check_equal(loaded[0], stored[1][0])


def test_methods_share_a_warm_start_and_do_not_change_it(
    stored: tuple[Path, list[Learner]], benchmark: Benchmark
) -> None:
    before = stored[0].read_bytes()
    for kind in (SourceOnly, CroDoBo):
        options = kind.Settings.of(**SETTINGS.model_dump(exclude={"learners"}))
        learners, _ = load_warm_start(stored[0], benchmark, options)
        method = make_method(kind, benchmark, learners, options)
        assert method.learners == learners
        check_equal(learners[0], stored[1][0])
    assert stored[0].read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 6},
        {"warmup": 4},
        {"warmup_batch": 9},
        {"lr": 0.1},
        {"weight_decay": 0.0},
        {"backbone_lr_scale": 0.5},
        {"backbone": "resnet18"},
        {"learners": 3},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_warm_start_of_other_settings_is_refused(
    other: dict[str, object], stored: tuple[Path, list[Learner]], benchmark: Benchmark
) -> None:
    with pytest.raises(BadCheckpoint, match=r"seed5\.safetensors is the warm start of other settings\. Delete it"):
        load_warm_start(stored[0], benchmark, SETTINGS.model_copy(update=other))


def test_a_warm_start_of_another_benchmark_is_refused(stored: tuple[Path, list[Learner]], benchmark: Benchmark) -> None:
    with pytest.raises(BadCheckpoint, match="other settings"):
        load_warm_start(stored[0], benchmark.resized(8), SETTINGS)


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "missing", "no header", "foreign"])
def test_a_damaged_warm_start_is_refused(
    damage: str, stored: tuple[Path, list[Learner]], benchmark: Benchmark, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "seed5.safetensors"
    path.write_bytes(stored[0].read_bytes())
    if damage == "truncated":
        os.truncate(path, path.stat().st_size // 2)
    elif damage == "missing":
        path.unlink()
    elif damage in ("no header", "foreign"):
        save_file({"weights": torch.zeros(1)}, path, {"crodobo": "{}"} if damage == "foreign" else None)
    else:
        path.write_text("" if damage == "empty" else "not tensors at all")
    with pytest.raises(BadCheckpoint, match=r"is damaged or not a warm start\. Delete it; it is made again\.$"):
        load_warm_start(path, benchmark, SETTINGS)
