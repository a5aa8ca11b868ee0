"""Network: backbone, bottleneck and classifier."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from crodobo.nn.backbones import Backbone


class Encoded(NamedTuple):
    """The output of a network for a batch: bottleneck features and logits."""

    features: Tensor
    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        return torch.softmax(self.logits, dim=1)


class Network(nn.Module):
    """Pixels → backbone → bottleneck of 256 with BatchNorm (or LayerNorm) → weight-normalised linear classifier."""

    def __init__(self, backbone: Backbone, classes: int, bottleneck: int = 256) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(backbone.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(backbone.std)[:, None, None])
        self.backbone = backbone.network
        self.width = bottleneck  # of the features that methods see
        norm = nn.BatchNorm1d(bottleneck) if backbone.batch_norm else nn.LayerNorm(bottleneck)
        self.bottleneck = nn.Sequential(nn.Linear(backbone.features, bottleneck), norm)
        self.classifier = weight_norm(nn.Linear(bottleneck, classes))

    def encode(self, images: Tensor) -> Encoded:
        """Bottleneck features and logits of images in 0..1."""
        features = self.bottleneck(self.backbone((images - self.mean) / self.std))
        return Encoded(features, self.classifier(features))

    def forward(self, images: Tensor) -> Tensor:
        return self.encode(images).logits
