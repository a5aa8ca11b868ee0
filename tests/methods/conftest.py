"""Shared by the tests of methods: double precision, images, and steps without the package's learners."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Generator, Tensor, nn

from crodobo import Method, Query, Source
from crodobo.nn.network import Network


@pytest.fixture
def _in_double_precision() -> Iterator[None]:
    """Adam divides by the size of the gradient, so a rounding error near zero would become a full step."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def make_images(source: Source) -> Callable[..., Tensor]:
    """Noisier images than the source's: one of four quarters is bright, in turn."""

    def make(size: int, seed: int = 0, noise: float = 0.6) -> Tensor:
        images = torch.rand(size, 1, 16, 16, generator=Generator().manual_seed(seed)) * noise
        for number, image in enumerate(images):
            top, left = 8 * (number // 2 % 2), 8 * (number % 2)
            image[:, top : top + 8, left : left + 8] += 1 - noise
        return images

    return make


@pytest.fixture
def ask() -> Callable[[Method, Tensor], Any]:
    """Step on a query with a copy of these images."""

    def step(method: Method, images: Tensor) -> Any:
        with Query(images.clone()) as query:
            return method.step(query)

    return step


class Hand:
    """Copies of a learner's network and generator, and torch's plain Adam, for a step written by hand."""

    def __init__(self, method: Method, number: int = 0) -> None:
        learner = method.learners[number]
        self.source, self.augment, self.settings = method.source, method.augment, method.settings
        self.network: Network = copy.deepcopy(learner.network).train()
        self.generator = Generator()
        self.generator.set_state(learner.generator.get_state())

    def adam(self, weights: list[Tensor], momentum: float = 0.9) -> torch.optim.Adam:
        options = {"lr": self.settings.lr, "betas": (momentum, 0.999), "weight_decay": 5e-4}
        return torch.optim.Adam(weights, **options, foreach=False, fused=False)

    def bootstrap(self, size: int) -> tuple[Tensor, Tensor]:
        """The source batch that the learner will draw next, weakly augmented, and its labels."""
        drawn = torch.randint(len(self.source), (size,), generator=self.generator)
        images = self.source.images[drawn].to(torch.get_default_dtype())
        return self.augment.weak(images, self.generator), self.source.labels[drawn]


@pytest.fixture
def by_hand() -> type[Hand]:
    return Hand


@pytest.fixture
def changed_since() -> Callable[[Method, dict[str, Tensor]], list[str]]:
    """Names of changed tensors in a method's state, without its counters and its guard."""

    def names(method: Method, before: dict[str, Tensor]) -> list[str]:
        differing = [name for name, value in method.state().items() if not torch.equal(value, before[name])]
        return [name for name in differing if name not in ("steps", "largest") and not name.startswith("guard.")]

    return names


@pytest.fixture
def views_of() -> Callable[[Method], Generator]:
    """A copy of the generator for the query's views."""

    def copied(method: Method) -> Generator:
        generator = Generator()
        generator.set_state(method.generator.get_state())
        return generator

    return copied


@pytest.fixture
def normalisation() -> Callable[[nn.Module], list[nn.Parameter]]:
    """The scales and shifts of a network."""

    def collect(network: nn.Module) -> list[nn.Parameter]:
        layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
        return [weight for layer in layers for weight in (layer.weight, layer.bias)]

    return collect


class ByTheBatch(nn.Module):
    """BatchNorm with the batch's own mean and unbiased variance, written out."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        axes = [axis for axis in range(inputs.ndim) if axis != 1]
        shape = [1, -1] + [1] * (inputs.ndim - 2)
        mean, variance = inputs.mean(axes), inputs.var(axes, unbiased=True)
        scale = self.layer.weight / torch.sqrt(variance + self.layer.eps)
        return (inputs - mean.reshape(shape)) * scale.reshape(shape) + self.layer.bias.reshape(shape)


@pytest.fixture
def with_query_statistics() -> Callable[[nn.Module, Tensor], Tensor]:
    """A network's probabilities with `ByTheBatch` in place of all BatchNorm layers."""

    def probabilities(network: nn.Module, images: Tensor) -> Tensor:
        network = copy.deepcopy(network).eval()
        for parent in list(network.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(parent, name, ByTheBatch(child))
        with torch.no_grad():
            return torch.softmax(network(images), dim=1)

    return probabilities
