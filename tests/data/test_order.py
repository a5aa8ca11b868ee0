"""Every order is a permutation of the target, depends on the seed, and mixes the classes as documented."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from crodobo.config import MethodSettings
from crodobo.data.order import full_name, stream_order
from crodobo.errors import BadSettings
from crodobo.evaluate.settings import RunSettings

KINDS = ["random", "by-class", "dirichlet", "dirichlet(1e-300)", "dirichlet(100)", "dirichlet(1e308)", "drift"]
LABELS = torch.arange(5000) % 10


def mixes(kind: str, seed: int, size: int = 64) -> Tensor:
    """The share of each class in each query."""
    queries = LABELS[stream_order(kind)(LABELS, seed)].split(size)
    return torch.stack([query.bincount(minlength=10) / len(query) for query in queries])


def entropy(kind: str) -> float:
    """The entropy of the classes in a query, mean over queries and seeds."""
    return torch.cat([torch.special.entr(mixes(kind, seed)).sum(dim=1) for seed in range(3)]).mean().item()


@pytest.mark.parametrize("kind", KINDS)
@given(labels=st.lists(st.integers(0, 12), min_size=1, max_size=200), seed=st.integers(0, 2**31 - 1))
def test_every_sample_comes_once_and_the_seed_decides_the_order(kind: str, labels: list[int], seed: int) -> None:
    order = stream_order(kind)(torch.tensor(labels), seed)
    assert order.dtype == torch.int64
    assert sorted(order.tolist()) == list(range(len(labels)))
    assert torch.equal(stream_order(kind)(torch.tensor(labels), seed), order)


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_gives_another_order(kind: str) -> None:
    assert not torch.equal(stream_order(kind)(LABELS, 1), stream_order(kind)(LABELS, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_global_random_states_are_neither_used_nor_changed(kind: str) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1]
    order = stream_order(kind)(LABELS, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    torch.manual_seed(1)
    np.random.seed(1)
    assert torch.equal(stream_order(kind)(LABELS, 3), order)


def test_the_random_order_is_torch_randperm() -> None:
    expected = torch.randperm(5000, generator=torch.Generator().manual_seed(4))
    assert torch.equal(stream_order("random")(LABELS, 4), expected)


def test_by_class_is_sorted_and_shuffled_within() -> None:
    order = stream_order("by-class")(LABELS, 0)
    assert torch.equal(LABELS[order], LABELS.sort().values)
    assert not torch.equal(order, LABELS.argsort(stable=True))


def test_bursts_weaken_with_alpha_until_the_order_is_random() -> None:
    entropies = [entropy(f"dirichlet({alpha})") for alpha in (0.01, 0.1, 1, 100)]
    assert entropies == sorted(entropies)
    assert entropies[1] < 0.6 * entropy("random")
    assert entropies[3] == pytest.approx(entropy("random"), rel=0.02)


def test_bursts_are_equally_long_in_a_longer_stream() -> None:
    def repeats(count: int) -> float:
        """How often a sample has the class of the one before it."""
        streamed = LABELS.repeat(4)[:count][stream_order("dirichlet")(LABELS.repeat(4)[:count], 0)]
        return (streamed[1:] == streamed[:-1]).float().mean().item()

    assert repeats(2000) == pytest.approx(repeats(20000), abs=0.1)
    assert repeats(2000) > 0.3


@pytest.mark.parametrize("seed", range(3))
def test_a_drift_ends_with_other_classes_than_it_starts_with(seed: int) -> None:
    tenths = mixes("drift", seed, size=500)
    assert torch.minimum(tenths[0], tenths[-1]).sum() < 0.1, "the first and the last tenth share hardly anything"
    neighbours = torch.minimum(tenths[1:], tenths[:-1]).sum(dim=1)
    assert neighbours.min() > 0.5, "the mix changes slowly"
    present = (mixes("drift", seed)[:-1] > 0).sum(dim=1)  # the last query is short
    assert present.min() >= 2
    assert present.float().mean() > 5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sorted", "There is no stream order 'sorted'. Choose random, by-class, drift or dirichlet"),
        ("", "There is no stream order ''"),
        ("Random", "There is no stream order 'Random'"),
        ("random(1)", "There is no stream order"),
        ("dirichlet 0.1", "There is no stream order"),
        ("dirichlet(0.1", "There is no stream order"),
        ("dirichlet()", "cannot be ''. Choose a number above 0, for example dirichlet"),
        ("dirichlet(strong)", "cannot be 'strong'"),
        ("dirichlet(0)", "cannot be '0'"),
        ("dirichlet(-1)", "cannot be '-1'"),
        ("dirichlet(nan)", "cannot be 'nan'"),
        ("dirichlet(inf)", "cannot be 'inf'"),
        ("dirichlet(1, 2)", "cannot be '1, 2'"),
    ],
)
def test_an_unknown_name_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(BadSettings, match=sentence) as caught:
        stream_order(name)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadSettings, match=sentence):
        RunSettings.of(stream=name, options=MethodSettings())


@given(alpha=st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_an_order_has_one_name(alpha: float) -> None:
    name = full_name(f"dirichlet({alpha!r})")
    assert full_name(name) == name
    assert full_name(f"dirichlet({alpha:.17e})") == name
    assert RunSettings.of(stream=name, options=MethodSettings()).stream == name


def test_names_are_short_and_contain_the_alpha() -> None:
    names = [full_name(name) for name in ("dirichlet", "dirichlet(5.0)", "drift")]
    assert names == ["dirichlet(0.1)", "dirichlet(5)", "drift"]


def test_settings_contain_the_alpha_and_the_seed() -> None:
    options = MethodSettings.of(seed=5)
    assert RunSettings.of(stream="dirichlet", options=options).stream == "dirichlet(0.1)"
    assert RunSettings.of(options=options).order_seed == 5
    assert RunSettings.of(stream_seed=0, options=options).order_seed == 0
