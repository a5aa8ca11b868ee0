"""Learner: one network with its optimiser, its generator and its BatchNorm modes."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from crodobo.config import LearnerSettings, Norm
from crodobo.core.prediction import Prediction
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.nn.backbones import Backbone, build_backbone
from crodobo.nn.normalisation import batch_norms, batch_statistics, mixed_statistics, running_weight
from crodobo.views.augment import Augment

Part = TypeVar("Part", bound=nn.Module)


class Network(nn.Module):
    """Pixels → backbone → bottleneck of 256 with BatchNorm → weight-normalised linear classifier."""

    def __init__(self, backbone: Backbone, classes: int, bottleneck: int = 256) -> None:
        super().__init__()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(backbone.mean)[:, None, None])
        self.register_buffer("std", torch.tensor(backbone.std)[:, None, None])
        self.backbone = backbone.network
        self.width = bottleneck  # of the features that methods see
        self.bottleneck = nn.Sequential(nn.Linear(backbone.features, bottleneck), nn.BatchNorm1d(bottleneck))
        self.classifier = weight_norm(nn.Linear(bottleneck, classes))

    def features(self, images: Tensor) -> Tensor:
        """Bottleneck features of images in 0..1."""
        features: Tensor = self.bottleneck(self.backbone((images - self.mean) / self.std))
        return features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(images))
        return logits


class Encoded(NamedTuple):
    """What a network makes of a batch: bottleneck features, and logits."""

    features: Tensor
    logits: Tensor

    @property
    def probabilities(self) -> Tensor:
        return torch.softmax(self.logits, dim=1)


class Learner:
    """A network that takes one update at a time, whole or not at all.

    Everything random about a learner (its initial weights, its bootstraps, its views of the source) comes from
    its own seed, so that learners differ from each other and each repeats itself.

    Parameters
    ----------
    shape
        Channels, height and width of the images that it takes.
    classes
        How many classes it tells apart.
    seed
        Decides the initial weights and every draw.
    settings
        Backbone, learning rates, norm.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, settings: LearnerSettings) -> None:
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            backbone = build_backbone(
                settings.backbone, shape, pretrained=settings.pretrained, weights=settings.weights
            )
            network = Network(backbone, classes).eval()
        self.network: Network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.seed = seed
        self.generator = Generator().manual_seed(seed)
        self._modules: dict[str, nn.Module] = {"network": network}
        scale = settings.backbone_lr_scale
        if scale is None:
            scale = 0.01 if backbone.pretrained else 1.0
        new = [*network.bottleneck.parameters(), *network.classifier.parameters()]
        self.optimiser = torch.optim.Adam(
            [
                {"params": list(network.backbone.parameters()), "lr": settings.lr * scale},
                {"params": new, "lr": settings.lr},
            ],
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self._norms = batch_norms(network)
        self.statistics: list[Tensor] = []  # of all BatchNorm layers, as they are now
        self._kept_statistics: list[Tensor] = []
        self._watch_statistics(network)
        self._finite = True  # whether all losses accumulated so far are
        self.share = 1.0  # what a loss counts; less for a query that is shorter than others

    def attach(self, name: str, make: Callable[[], Part]) -> Part:
        """Give the learner a further part, a discriminator for example, that learns and is stored with it.

        `make` builds it; its initial weights come from the learner's seed. Weights of it that want no gradient are
        stored and not learned.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            part = make().eval()
        self._modules[name] = part
        if weights := [weight for weight in part.parameters() if weight.requires_grad]:
            self.optimiser.add_param_group({"params": weights, "lr": self.settings.lr})
        self._watch_statistics(part)
        return part

    def part(self, name: str) -> nn.Module:
        """A part that was attached."""
        return self._modules[name]

    def learn_only(self, weights: Iterable[nn.Parameter], lr: float) -> None:
        """From here on update these weights and no others, with a fresh optimiser."""
        chosen = list(weights)
        for part in self._modules.values():
            part.requires_grad_(False)
        for weight in chosen:
            weight.requires_grad_(True)
        self.optimiser = torch.optim.Adam(chosen, lr=lr, fused=True)

    def set_momentum(self, momentum: float) -> None:
        """How much of the step before goes into the next one, Adam's β₁."""
        for group in self.optimiser.param_groups:
            group["betas"] = (momentum, group["betas"][1])

    @property
    def learned(self) -> list[nn.Parameter]:
        """The weights that an update moves."""
        return [weight for group in self.optimiser.param_groups for weight in group["params"]]

    def forward(self, images: Tensor) -> Tensor:
        """Logits in train mode: one BatchNorm batch of its own, gradients on."""
        return self.encode(images).logits

    def encode(self, images: Tensor) -> Encoded:
        """Bottleneck features and logits in train mode."""
        with batch_statistics(self._norms, len(images)):
            features = self.network.features(images)
        return Encoded(features, self.network.classifier(features))

    @torch.no_grad()
    def predict(self, images: Tensor, norm: Norm | None = None) -> Tensor:
        """Class probabilities, with the BatchNorm statistics that the `norm` setting names, or others."""
        return self.describe(images, norm).probabilities

    @torch.no_grad()
    def describe(self, images: Tensor, norm: Norm | None = None) -> Encoded:
        """Features and logits as at prediction."""
        weight = running_weight(norm or self.settings.norm, self.settings.running_weight, len(images))
        with mixed_statistics(self._norms, weight):
            features = self.network.features(images)
        return Encoded(features, self.network.classifier(features))

    def accumulate(self, loss: Tensor) -> None:
        """Add a loss to the step that `update` will take.

        Its gradient is computed here and now, so that its activations can go before the next forward: the sum is that
        of a joint backward, in less memory and time.
        """
        self._finite &= bool(torch.isfinite(loss))
        (loss if self.share == 1 else self.share * loss).backward()

    def update(self, loss: Tensor | None = None) -> bool:
        """One optimiser step down the loss and all that was accumulated, or, where one is not finite, none at all.

        Returns whether the step was taken. Where it was not, weights, moments and BatchNorm statistics are as they
        were after the step before. No gradient outlives the call.
        """
        if loss is not None:
            self.accumulate(loss)
        gradients = [
            weight.grad for part in self._modules.values() for weight in part.parameters() if weight.grad is not None
        ]
        if not (self._finite and nn.utils.get_total_norm(gradients).isfinite()):
            self.forget()
            return False
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.keep_statistics()
        return True

    @torch.no_grad()
    def forget(self) -> None:
        """Undo what was done since the last update: BatchNorm statistics back, gradients gone."""
        self._finite = True
        for statistic, kept in zip(self.statistics, self._kept_statistics, strict=True):
            statistic.copy_(kept)
        self.optimiser.zero_grad(set_to_none=True)

    def _watch_statistics(self, part: nn.Module) -> None:
        statistics = [
            buffer
            for layer in batch_norms(part)
            for buffer in (layer.running_mean, layer.running_var, layer.num_batches_tracked)
            if buffer is not None
        ]
        self.statistics += statistics
        self._kept_statistics += [buffer.clone() for buffer in statistics]

    def keep_statistics(self) -> None:
        """Let the BatchNorm statistics as they are now be those that `forget` goes back to."""
        for statistic, kept in zip(self.statistics, self._kept_statistics, strict=True):
            kept.copy_(statistic)

    def warm_up(self, source: Source, augment: Augment, after_step: Callable[[], None] = lambda: None) -> None:
        """Learn the source before the stream begins, on bootstraps of this learner's own."""
        for _ in range(self.settings.warmup):
            batch = source.bootstrap(self.settings.warmup_batch, self.generator)
            logits = self.forward(augment.weak(batch.images, self.generator))
            self.update(F.cross_entropy(logits, batch.labels))
            after_step()

    def state(self) -> dict[str, Tensor]:
        """Weights, optimiser moments and generator, by name; nothing else is needed to go on.

        The tensors are the living ones: clone what is to outlast the next update.
        """
        state = {"generator": self.generator.get_state()}
        for part, module in self._modules.items():
            state |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
            for name, weight in module.named_parameters():
                for key, value in self.optimiser.state.get(weight, {}).items():
                    state[f"optimiser.{part}.{name}.{key}"] = value
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        for part, module in self._modules.items():
            module.load_state_dict({name: state[f"{part}.{name}"] for name in module.state_dict()})
            for name, weight in module.named_parameters():
                prefix = f"optimiser.{part}.{name}."
                moments = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
                # The fused optimiser walks weights and moments side by side in memory: same layout for both.
                self.optimiser.state[weight] = {
                    key: torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value.clone()
                    for key, value in moments.items()
                }
        self.generator.set_state(state["generator"])
        self.keep_statistics()


def make_learners(source: Source, count: int, seed: int, settings: LearnerSettings, first: int = 0) -> list[Learner]:
    """Learners `first` to `first + count - 1` of a run: same run and number, same learner."""
    return [
        Learner(source.shape, len(source.classes), seed * 1009 + number, settings)
        for number in range(first, first + count)
    ]


def warm_up(
    learners: list[Learner],
    engine: Engine,
    source: Source,
    augment: Augment,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Let every learner learn the source; `after_step` is called from their threads after each step of each."""
    engine.map(lambda learner: learner.warm_up(source, augment, after_step), learners)


def average(learners: list[Learner], engine: Engine, images: Tensor, norm: Norm | None = None) -> Prediction:
    """The learners' joint prediction of images in 0..1: the mean of their probabilities."""
    each = torch.stack(engine.map(lambda learner: learner.predict(images, norm), learners))
    votes = each.argmax(dim=2)
    agreement = float((votes == votes[0]).all(dim=0).float().mean()) if len(each) > 1 else None
    return Prediction(each.mean(dim=0), agreement)
