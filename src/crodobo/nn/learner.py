"""Learner: one network with its optimiser, its random generator and its BatchNorm modes."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Generator, Tensor, nn

from crodobo.config import LearnerSettings, Norm
from crodobo.nn.backbones import build_backbone
from crodobo.nn.layer_statistics import Moments, running
from crodobo.nn.network import Encoded, Network
from crodobo.nn.normalisation import batch_norms, batch_statistics, mixed_statistics, running_weight
from crodobo.nn.target_statistics import QueryNorm, TargetStatistics
from crodobo.storage.tensors import with_prefix

SCALE, PUBLISHED_SCALE = 0.1, 0.01  # of the learning rate for a pretrained backbone
GENTLE = 0.1  # scale of the backbone's learning rate up to which its features hardly move
# How far one source sample moves the moments of its class: the faster the weights change, the farther.
MOMENTUM, GENTLE_MOMENTUM = 0.05, 0.01

Part = TypeVar("Part", bound=nn.Module)
PredictionViews = Callable[[Tensor], Iterable[Tensor]]


class Learner:
    """A network that takes one update at a time, completely or not at all.

    Everything random about a learner (initial weights, bootstraps, views of the source) comes from its own seed, so
    learners differ from each other and each one is reproducible.

    Parameters
    ----------
    shape
        Channels, height and width of the images.
    classes
        The number of classes.
    seed
        Decides the initial weights and every random draw.
    settings
        Backbone, learning rates, norm.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, seed: int, settings: LearnerSettings) -> None:
        self.settings = settings
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            pretrained, weights = settings.pretrained, settings.weights
            backbone = build_backbone(settings.backbone, shape, pretrained=pretrained, weights=weights)
            network = Network(backbone, classes).eval()
        self.network: Network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.seed, self.generator = seed, Generator().manual_seed(seed)
        self._parts: dict[str, nn.Module] = {"network": network}
        scale = settings.backbone_lr_scale
        if scale is None:
            scale = (PUBLISHED_SCALE if settings.plain else SCALE) if backbone.pretrained else 1.0
        self.backbone_lr_scale = scale
        self._frozen = first_share(list(network.backbone.parameters()), settings.frozen)
        self.optimiser = self._make_optimiser()
        self._norms = batch_norms(network)
        self.statistics: list[Tensor] = []  # the running statistics of all BatchNorm layers
        self._kept_statistics: list[Tensor] = []  # copies of them, made after the last update
        self._watch_statistics(network)
        self._finite = True  # whether all losses accumulated so far are finite
        self.share = 1.0  # the weight of each loss; less than 1 for a short query
        self.step_size = 1.0  # the share of the learning rates that updates use; less than 1 for a short query
        self.target: TargetStatistics | None = None  # kept apart from the source's, if a method asks for it
        self.query_norm = QueryNorm()  # how the current query is normalised, with these statistics
        self.plain_start: dict[str, Tensor] = {}  # the state after a warm-up without source views, if there are two
        self.views: PredictionViews = lambda images: (images,)  # whose predictions an answer is the mean of

    def _make_optimiser(self) -> torch.optim.Optimizer:
        network, settings = self.network.requires_grad_(True), self.settings
        for weight in self._frozen:
            weight.requires_grad_(False)
        old = [weight for weight in network.backbone.parameters() if weight.requires_grad]
        new = [*network.bottleneck.parameters(), *network.classifier.parameters()]
        groups = [{"params": old, "lr": settings.lr * self.backbone_lr_scale}, {"params": new, "lr": settings.lr}]
        return torch.optim.Adam(groups, weight_decay=settings.weight_decay, fused=True)

    def attach(self, name: str, make: Callable[[], Part]) -> Part:
        """Add a part, for example a discriminator, that is trained and stored with the learner.

        `make` builds it; its initial weights come from the learner's seed. Parameters that need no gradient are stored
        but not trained.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            part = make().eval()
        self._parts[name] = part
        if weights := [weight for weight in part.parameters() if weight.requires_grad]:
            self.optimiser.add_param_group({"params": weights, "lr": self.settings.lr})
        self._watch_statistics(part)
        return part

    def part(self, name: str) -> nn.Module:
        """An attached part."""
        return self._parts[name]

    def learn_only(self, weights: Iterable[nn.Parameter], lr: float) -> None:
        """From now on update only these weights, with a new optimiser."""
        frozen = set(self._frozen)
        chosen = [weight for weight in weights if weight not in frozen]
        for part in self._parts.values():
            part.requires_grad_(False)
        for weight in chosen:
            weight.requires_grad_(True)
        self.optimiser = torch.optim.Adam(chosen, lr=lr, fused=True)

    def set_momentum(self, momentum: float) -> None:
        """Set Adam's β₁."""
        for group in self.optimiser.param_groups:
            group["betas"] = (momentum, group["betas"][1])

    @property
    def learned(self) -> list[nn.Parameter]:
        """The weights that an update changes."""
        return [weight for group in self.optimiser.param_groups for weight in group["params"]]

    @property
    def gentle(self) -> bool:
        """Whether the backbone learns so slowly that its features hardly move."""
        return self.backbone_lr_scale <= GENTLE

    def keep_target_statistics(self, prior: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> TargetStatistics:
        """Keep the target's BatchNorm statistics apart from the source's.

        `prior` is the class mix of the source. Labelled `batches` of it tell what the classes do to the statistics.
        """
        self.statistics = []
        for part in self._parts.values():
            self._watch_statistics(part)
        momentum = GENTLE_MOMENTUM if self.gentle else MOMENTUM
        self.target = TargetStatistics(self._norms, prior, momentum)
        for images, labels in batches:
            with torch.no_grad(), self.target.source(labels):
                self.forward(images)
            self.forget()
        self.target.begin()
        self.statistics += self.target.tensors().values()
        self._kept_statistics = [statistic.clone() for statistic in self.statistics]
        return self.target

    @property
    def stream_statistics(self) -> list[Moments]:
        """The running statistics with which the stream is predicted: the target's, if they are kept apart."""
        target = self.target.layers if self.target else ()
        return [Moments(each.mean, each.var) for each in target] or [running(layer) for layer in self._norms]

    def forward(self, images: Tensor) -> Tensor:
        """Logits in train mode. The images are one BatchNorm batch, and gradients are on."""
        return self.encode(images).logits

    def forward_query(self, images: Tensor) -> Tensor:
        """The same for a view of the query, which may have statistics of its own."""
        if not self.target:
            return self.forward(images)
        with self.target.learning(self.query_norm, len(images)):
            return self.network.encode(images).logits

    def encode(self, images: Tensor) -> Encoded:
        """Bottleneck features and logits in train mode."""
        with batch_statistics(self._norms, len(images)):
            return self.network.encode(images)

    def predict(self, images: Tensor, norm: Norm | None = None) -> Tensor:
        """Class probabilities. `norm` overrides the setting of that name."""
        return self.describe(images, norm).probabilities

    @torch.no_grad()
    def answer(self, images: Tensor, norm: Norm | None = None) -> Tensor:
        """The mean of the class probabilities over all prediction views."""
        each = []
        for view in self.views(images):
            try:
                each.append(self.predict(view, norm))
            finally:
                if view is not images:
                    view.zero_()  # a copy of private images
        return each[0] if len(each) == 1 else torch.stack(each).mean(dim=0)

    @torch.no_grad()
    def describe(self, images: Tensor, norm: Norm | None = None) -> Encoded:
        """Bottleneck features and logits in prediction mode."""
        if self.target and norm is None:
            with self.target.predicting(self.query_norm, len(images)):
                return self.network.encode(images)
        weight = running_weight(norm or self.settings.norm, self.settings.running_weight, len(images))
        with mixed_statistics(self._norms, weight):
            return self.network.encode(images)

    def accumulate(self, loss: Tensor) -> None:
        """Add a loss to the step that `update` will take.

        The gradient is computed here, so the activations are free before the next forward. The sum equals that of a
        joint backward and takes less memory and time.
        """
        self._finite &= bool(torch.isfinite(loss))
        (loss if self.share == 1 else self.share * loss).backward()

    def update(self, loss: Tensor | None = None) -> bool:
        """Take one optimiser step on this loss and all accumulated ones. Return whether it was taken.

        If a loss or the gradient is not finite, nothing happens: weights, moments and BatchNorm statistics stay as they
        were after the last update. No gradient outlives the call.
        """
        if loss is not None:
            self.accumulate(loss)
        weights = [weight for part in self._parts.values() for weight in part.parameters()]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if not (self._finite and nn.utils.get_total_norm(gradients).isfinite()):
            self.forget()
            return False
        with self._scaled_rates():
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.keep_statistics()
        return True

    @contextmanager
    def _scaled_rates(self) -> Iterator[None]:
        """Scale the step, not the loss: Adam divides a gradient by its usual size, so the scale of a loss cancels."""
        rates = [group["lr"] for group in self.optimiser.param_groups]
        for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * self.step_size
        try:
            yield
        finally:
            for group, rate in zip(self.optimiser.param_groups, rates, strict=True):
                group["lr"] = rate

    @torch.no_grad()
    def forget(self) -> None:
        """Drop the gradients and undo the changes to BatchNorm statistics since the last update."""
        self._finite = True
        for statistic, kept in zip(self.statistics, self._kept_statistics, strict=True):
            statistic.copy_(kept)
        self.optimiser.zero_grad(set_to_none=True)

    def keep_statistics(self) -> None:
        """Make the current BatchNorm statistics those that `forget` returns to."""
        for statistic, kept in zip(self.statistics, self._kept_statistics, strict=True):
            kept.copy_(statistic)

    def _watch_statistics(self, part: nn.Module) -> None:
        for layer in batch_norms(part):
            buffers = (layer.running_mean, layer.running_var, layer.num_batches_tracked)
            self.statistics += [buffer for buffer in buffers if buffer is not None]
        self._kept_statistics = [buffer.clone() for buffer in self.statistics]

    def begin_plain(self) -> None:
        """Become the learner that has learned the source as it is, without attached parts. See `learners.warm_up`."""
        start, self._parts, self.target = self.plain_start, {"network": self.network}, None
        self.optimiser, self.statistics = self._make_optimiser(), []
        self._watch_statistics(self.network)
        self.load_state(start)

    def reseed(self, seed: int) -> None:
        """From now on draw other random numbers."""
        self.generator.manual_seed(seed)
        if self.plain_start:
            self.plain_start["generator"] = self.generator.get_state()

    def frozen_copy(self) -> "Learner":
        """A learner with the same weights and statistics that will not learn."""
        other = copy.copy(self)
        other.network = copy.deepcopy(self.network).requires_grad_(False)
        other.generator = Generator().manual_seed(self.seed)
        other.optimiser = torch.optim.Adam(other.network.parameters())
        other._parts, other._norms = {"network": other.network}, batch_norms(other.network)
        other.statistics, other.target, other.plain_start = [], None, {}
        other._watch_statistics(other.network)
        if self.target:
            copied = other.keep_target_statistics(self.target.prior, ()).tensors()
            for name, value in self.target.tensors().items():
                copied[name].copy_(value)
        return other

    def state(self) -> dict[str, Tensor]:
        """Weights, optimiser moments and generator by name: everything needed to continue.

        These are the tensors in use, not copies. Clone them to keep their values.
        """
        state = {"generator": self.generator.get_state()}
        state |= {f"plain_start.{name}": value for name, value in self.plain_start.items()}
        if self.target:
            state |= {f"target.{name}": value for name, value in self.target.tensors().items()}
        for part, module in self._parts.items():
            state |= {f"{part}.{name}": value for name, value in module.state_dict().items()}
            for name, weight in module.named_parameters():
                moments = self.optimiser.state.get(weight, {})
                state |= {f"optimiser.{part}.{name}.{key}": value for key, value in moments.items()}
        return state

    @torch.no_grad()
    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        for part, module in self._parts.items():
            module.load_state_dict(with_prefix(f"{part}.", state))
            for name, weight in module.named_parameters():
                moments = with_prefix(f"optimiser.{part}.{name}.", state)
                # The fused optimiser reads weights and moments side by side, so both need the same memory layout.
                self.optimiser.state[weight] = {
                    key: torch.empty_like(weight).copy_(value) if value.shape == weight.shape else value.clone()
                    for key, value in moments.items()
                }
        if self.target:
            for name, value in self.target.tensors().items():
                value.copy_(state[f"target.{name}"])
        self.plain_start = {name: value.clone() for name, value in with_prefix("plain_start.", state).items()}
        self.generator.set_state(state["generator"])
        self.keep_statistics()


def first_share(weights: list[nn.Parameter], share: float) -> list[nn.Parameter]:
    """The first weights, up to this share of all numbers in them.

    >>> layers = [nn.Parameter(torch.zeros(size)) for size in (1, 3, 4)]
    >>> [len(weight) for weight in first_share(layers, 0.5)]
    [1, 3]
    """
    room = share * sum(weight.numel() for weight in weights)
    chosen = []
    for weight in weights:
        room -= weight.numel()
        if room < 0:
            break
        chosen.append(weight)
    return chosen
