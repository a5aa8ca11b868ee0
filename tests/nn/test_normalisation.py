"""BatchNorm uses the chosen statistics and keeps its running ones."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from crodobo.nn.normalisation import (
    batch_norms,
    batch_statistics,
    mixed_statistics,
    running_weight,
)

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.BatchNorm1d(3), (8, 3)),
    "2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 6)),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def lived_in(layer: nn.Module) -> nn.Module:
    """Set statistics and affine weights that differ from the initial ones."""
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            if name != "num_batches_tracked":
                tensor.copy_(torch.rand(tensor.shape, generator=random) + 0.5)
    return layer.eval()


def kept(layer: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in layer.state_dict().items()}


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@each_case
@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8, 1.0])
def test_the_mix_matches_a_calculation_by_hand(
    case: tuple[Callable[[], nn.Module], tuple[int, ...]], weight: float
) -> None:
    make, shape = case
    layer, batch = lived_in(make()), torch.randn(shape, generator=torch.Generator().manual_seed(2)) * 3 + 1
    before = kept(layer)
    axes = [axis for axis in range(batch.ndim) if axis != 1]
    expected = F.batch_norm(
        batch,
        weight * before["running_mean"] + (1 - weight) * batch.mean(dim=axes),
        weight * before["running_var"] + (1 - weight) * batch.var(dim=axes, unbiased=True),
        before["weight"],
        before["bias"],
        training=False,
        eps=1e-5,
    )
    with mixed_statistics(batch_norms(layer), weight):
        mixed = layer(batch)
    assert torch.allclose(mixed, expected, atol=1e-5)
    assert same(kept(layer), before)
    plain = F.batch_norm(batch, before["running_mean"], before["running_var"], before["weight"], before["bias"])
    assert torch.equal(layer(batch), plain)


def test_layers_keep_their_statistics_within_the_block_too() -> None:
    layer, other = lived_in(nn.BatchNorm1d(2)), lived_in(nn.BatchNorm1d(2))
    before, batch = kept(layer), torch.randn(6, 2)
    with mixed_statistics(batch_norms(nn.Sequential(layer, other)), 0.5):
        first, second = layer(batch), layer(batch)
        assert same(kept(layer), before)
    assert torch.equal(first, second)


class Broken(nn.BatchNorm2d):
    def forward(self, batch: Tensor) -> Tensor:
        raise RuntimeError("broken")


class Fails(nn.Module):
    def forward(self, batch: Tensor) -> Tensor:
        raise RuntimeError("broken")


@pytest.mark.parametrize(
    "network", [Broken(3), nn.Sequential(nn.BatchNorm2d(3), Fails())], ids=["in-the-layer", "after-the-layer"]
)
def test_statistics_survive_a_forward_that_raises(network: nn.Module) -> None:
    lived_in(network)
    before = kept(network)
    with pytest.raises(RuntimeError), mixed_statistics(batch_norms(network), 0.5):
        network(torch.rand(2, 3, 4, 4))
    assert same(kept(network), before)
    with pytest.raises(RuntimeError):
        network(torch.rand(2, 3, 4, 4))
    assert same(kept(network), before)  # nothing is mixed any more


def test_mixing_works_with_the_fused_layers_of_timm() -> None:
    import crodobo.core.torchvision_shim  # noqa: F401

    from timm.layers import BatchNormAct2d  # isort: skip

    fused, plain = lived_in(BatchNormAct2d(3)), lived_in(nn.BatchNorm2d(3))
    before, batch = kept(fused), torch.randn(4, 3, 5, 5)
    with mixed_statistics(batch_norms(nn.Sequential(fused, plain)), 0.4):
        assert torch.allclose(fused(batch), torch.relu(plain(batch)), atol=1e-5)
    assert same(kept(fused), before)


@each_case
def test_train_mode_normalises_with_the_batch_and_moves_the_statistics(
    case: tuple[Callable[[], nn.Module], tuple[int, ...]],
) -> None:
    make, shape = case
    layer, reference, batch = lived_in(make()), lived_in(make()).train(), torch.randn(shape)
    with batch_statistics(batch_norms(layer), size=shape[0]):
        normalised = layer(batch)
    assert torch.equal(normalised, reference(batch))
    assert same(kept(layer), kept(reference))
    assert not layer.training


def test_a_batch_of_one_is_normalised_with_the_running_statistics() -> None:
    layer, one = lived_in(nn.BatchNorm1d(3)), torch.randn(1, 3)
    before, expected = kept(layer), layer(one)
    with batch_statistics(batch_norms(layer), size=1):
        assert torch.equal(layer(one), expected)
    assert same(kept(layer), before)


def test_train_mode_ends_with_the_block_even_if_it_raises() -> None:
    layer = lived_in(nn.BatchNorm1d(3))
    with pytest.raises(ZeroDivisionError), batch_statistics(batch_norms(layer), size=4):
        _ = 1 / 0
    before = kept(layer)
    layer(torch.randn(4, 3))
    assert same(kept(layer), before)


def test_dropout_stays_off_in_train_mode() -> None:
    network = nn.Sequential(nn.BatchNorm1d(50), nn.Dropout(0.5)).eval()
    with batch_statistics(batch_norms(network), size=8):
        assert network(torch.randn(8, 50)).all()


def test_only_layers_with_running_statistics_are_found() -> None:
    tracked = nn.BatchNorm1d(2)
    network = nn.Sequential(tracked, nn.BatchNorm2d(2, track_running_stats=False), nn.LayerNorm(2), nn.Linear(2, 2))
    assert batch_norms(network) == [tracked]


@given(
    count=st.integers(2, 9),
    channels=st.integers(1, 5),
    size=st.tuples(st.integers(1, 4), st.integers(1, 4)) | st.just(()),
    scale=st.floats(0.01, 100),
    shift=st.floats(-10, 10),
    weight=st.floats(0, 0.99),
    last=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_mix_agrees_with_torchs_own_variance_in_any_layout(
    count: int,
    channels: int,
    size: tuple[int, ...],
    scale: float,
    shift: float,
    weight: float,
    last: bool,
    seed: int,
) -> None:
    batch = torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(seed)) * scale + shift
    layer = lived_in(nn.BatchNorm2d(channels) if size else nn.BatchNorm1d(channels))
    before = kept(layer)
    variance, mean = torch.var_mean(batch.double(), dim=[axis for axis in range(batch.ndim) if axis != 1])
    expected = F.batch_norm(
        batch.double(),
        torch.lerp(mean, before["running_mean"].double(), weight),
        torch.lerp(variance, before["running_var"].double(), weight),
        before["weight"].double(),
        before["bias"].double(),
    )
    if last and size:
        batch = batch.to(memory_format=torch.channels_last)
    with mixed_statistics(batch_norms(layer), weight):
        mixed = layer(batch)
    assert torch.allclose(mixed.double(), expected, rtol=1e-3, atol=1e-3)
    assert same(kept(layer), before)


@given(weight=st.floats(0, 1), first=st.integers(1, 200), second=st.integers(1, 200))
def test_the_running_weight_never_grows_with_the_query(weight: float, first: int, second: int) -> None:
    small, large = sorted((first, second))
    of_small, of_large = (running_weight("mixed", weight, size) for size in (small, large))
    assert 1 >= of_small >= of_large
    assert of_large >= weight - 1e-12


def test_the_mix_grows_from_one_sample_to_a_full_query() -> None:
    weights = [running_weight("mixed", 0.8, size) for size in (1, 8, 16, 32, 64)]
    assert weights[0] == 1
    assert weights[0] > weights[1] > weights[2] > weights[3]
    assert weights[3:] == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize("norm", ["mixed", "running", "query"])
def test_a_query_of_one_uses_the_running_statistics_alone(norm: str) -> None:
    assert running_weight(norm, 0.5, size=1) == 1  # type: ignore[arg-type]


def test_running_and_query_are_the_two_extremes() -> None:
    assert running_weight("running", 0.5, size=2) == 1
    assert running_weight("query", 0.5, size=2) == 0
