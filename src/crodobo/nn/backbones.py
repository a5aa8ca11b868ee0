"""Feature networks by name: the built-in small ResNet, timm's networks, torchvision's.

small                   built in, for images of about 32 pixels
small-groupnorm         the same without BatchNorm, for streams in strong bursts
resnet18, hrnet_w48 …   any classification network of timm
torchvision/NAME        any classification network of torchvision
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import crodobo.core.torchvision_shim  # noqa: F401
from crodobo.config import BUILT_IN, LearnerSettings, nearest
from crodobo.errors import BadSettings, BadWeights
from crodobo.nn.hub import download
from crodobo.nn.weights import read_weights

IMAGENET_MEAN: tuple[float, ...] = (0.485, 0.456, 0.406)
IMAGENET_STD: tuple[float, ...] = (0.229, 0.224, 0.225)
# The names of classifiers in weights files. They are not loaded.
HEADS: tuple[str, ...] = ("fc.", "classifier.", "head.", "heads.", "head_dist.", "last_linear.", "classif.")
HEADS += ("AuxLogits.", "aux1.", "aux2.")
GROUPS = 8  # of channels that GroupNorm normalises together
PHOTOGRAPH = 64  # pixels from which a colour image may be a photograph
RANDOM_WEIGHTS = (
    "The network starts from random weights. If the images are photographs, use pretrained weights: for example the "
    "backbone resnet18 with `pretrained`, or a file of `weights`."
)


@dataclass(frozen=True)
class Backbone:
    """A feature network, its number of features, and the pixel statistics that it expects."""

    network: nn.Module
    features: int
    mean: tuple[float, ...]  # one per channel, or one for all
    std: tuple[float, ...]
    pretrained: bool
    batch_norm: bool = True  # whether the layers after it may use BatchNorm


def build_backbone(
    name: str, shape: tuple[int, ...], *, pretrained: bool = False, weights: str | Path | None = None
) -> Backbone:
    """Make the named network without its classifier, for images of `shape` (channels, height, width).

    >>> build_backbone("small", (1, 32, 32)).features
    128
    """
    if pretrained and weights:
        problem = "Pretrained weights and a weights file are both given."
        raise BadSettings(problem, "Choose one of them.", settings=("pretrained", "weights"))
    check_backbone(name)
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    network: nn.Module
    try:
        if name in BUILT_IN:
            if pretrained:
                problem = f"The built-in backbone `{name}` has no pretrained weights."
                remedy = "Start from random weights, or choose another backbone."
                raise BadSettings(problem, remedy, settings=("pretrained", "backbone"))
            norm = nn.BatchNorm2d if name == "small" else partial(nn.GroupNorm, GROUPS)
            network, mean, std = SmallResNet(shape[0], norm), (0.5,), (0.5,)
        elif "/" in name:
            network = _torchvision_network(name, shape, pretrained)
        else:
            network, mean, std = _timm_network(name, shape, pretrained)
    except (AssertionError, ValueError) as error:
        raise _cannot_process(name, shape, error) from error
    if weights:
        _load_weights(network, name, Path(weights))
    features = _count_features(network, name, shape)
    if shape[0] != 3:  # the statistics are for three channels: use their mean for all
        mean, std = (sum(mean) / len(mean),), (sum(std) / len(std),)
    return Backbone(network, features, mean, std, pretrained or weights is not None, name != "small-groupnorm")


def needs_pretrained_weights(shape: tuple[int, ...], settings: LearnerSettings) -> bool:
    """Whether images of this shape may be photographs, and the network is about to start from random weights.

    >>> [needs_pretrained_weights(shape, LearnerSettings()) for shape in ((3, 64, 64), (1, 64, 64), (3, 32, 32))]
    [True, False, False]
    """
    photographs = shape[0] == 3 and min(shape[1:]) >= PHOTOGRAPH
    return photographs and not settings.pretrained and settings.weights is None


def check_backbone(name: str) -> None:
    """Refuse a name that no network has, and suggest the nearest."""
    if name in BUILT_IN:
        return
    if "/" in name:
        from torchvision import models

        network, known = name, [f"torchvision/{model}" for model in models.list_models(module=models)]
    else:
        import timm

        network, known = name.split(".")[0], [*BUILT_IN, *timm.list_models()]
    if network not in known:
        near = nearest(name, known, most=2)
        usual = "Use small, a timm name, or torchvision/NAME; timm.list_models() lists timm's names."
        remedy = f"Did you mean {near}?" if near else usual
        raise BadSettings(f"There is no backbone {name!r}.", remedy, settings=("backbone",))


class SmallResNet(nn.Module):
    """A residual network for images of about 32 pixels: three blocks, 32 to 128 channels.

    `norm` makes a normalisation layer for a number of channels.
    """

    def __init__(self, channels: int, norm: Callable[[int], nn.Module], width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False), norm(width), nn.ReLU(inplace=True)
        )
        sizes = [(width, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2)]
        self.blocks = nn.Sequential(*(Block(*size, norm) for size in sizes))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images))
        return features.mean(dim=(2, 3))


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.relu(self.residual(inputs) + self.shortcut(inputs))


class GreyToColour(nn.Module):
    """Repeats a grey channel for a network that only accepts three channels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network(images.expand(-1, 3, -1, -1))
        return features


def _timm_network(
    name: str, shape: tuple[int, ...], pretrained: bool
) -> tuple[nn.Module, tuple[float, ...], tuple[float, ...]]:
    import timm

    channels, height, width = shape
    try:
        expected = timm.get_pretrained_cfg(name)
    except RuntimeError as error:  # a known network with an unknown tag
        problem = f"timm has no {name} ({error})."
        raise BadSettings(problem, "Leave out the part after the dot.", settings=("backbone",)) from error
    options: dict[str, Any] = {"img_size": (height, width)} if getattr(expected, "fixed_input_size", False) else {}
    make = partial(timm.create_model, name, num_classes=0, in_chans=channels, **options)
    network: nn.Module = download(partial(make, pretrained=True), name) if pretrained else make()
    return network, tuple(getattr(expected, "mean", IMAGENET_MEAN)), tuple(getattr(expected, "std", IMAGENET_STD))


def _torchvision_network(name: str, shape: tuple[int, ...], pretrained: bool) -> nn.Module:
    from torchvision import models

    short = name.partition("/")[2]
    options = {"image_size": shape[1]} if short.startswith("vit_") else {}
    make = partial(models.get_model, short, **options)
    network: nn.Module = download(partial(make, weights="DEFAULT"), name) if pretrained else make()
    for head in ("fc", "classifier", "head", "heads"):
        if hasattr(network, head):
            setattr(network, head, nn.Flatten())  # some heads also flatten the pooled features
    return GreyToColour(network) if shape[0] == 1 else network


def _cannot_process(name: str, shape: tuple[int, ...], error: Exception) -> BadSettings:
    reason = f" ({error})" if str(error) else ""
    problem = f"{name} cannot process images of {'×'.join(map(str, shape))}{reason}."
    return BadSettings(problem, "Choose another backbone or image size.", settings=("backbone", "image_size"))


def _load_weights(network: nn.Module, name: str, path: Path) -> None:
    inner = network.network if isinstance(network, GreyToColour) else network
    own = inner.state_dict()
    given = {key: value for key, value in read_weights(path).items() if key in own or not key.startswith(HEADS)}
    shared = [key for key in own if key in given]
    problems = {
        "lacks": [key for key in own if key not in given and not key.endswith("num_batches_tracked")],
        "has unknown": [key for key in given if key not in own],
        "has another shape for": [key for key in shared if own[key].shape != given[key].shape],
        "has NaN or infinite values in": [key for key in shared if not given[key].isfinite().all()],
    }
    for problem, keys in problems.items():
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            remedy = "Give weights of the same network with the same number of channels, or choose another backbone."
            misfit = f"{path} does not fit {name}: it {problem} {keys[0]}{more}."
            raise BadWeights(misfit, remedy, settings=("weights", "backbone"))
    inner.load_state_dict(given, strict=False)


def _count_features(network: nn.Module, name: str, shape: tuple[int, ...]) -> int:
    network.eval()
    try:
        with torch.no_grad():
            features = network(torch.zeros(1, *shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise _cannot_process(name, shape, error) from error
    if features.ndim != 2:
        problem = f"{name} gives features of shape {tuple(features.shape[1:])}, not a vector."
        raise BadSettings(problem, "Choose another backbone.", settings=("backbone",))
    return int(features.shape[1])
