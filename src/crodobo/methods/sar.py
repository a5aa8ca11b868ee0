"""SAR: TENT on confident samples, towards flat minima, with a reset after a collapse."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from crodobo.config import Fraction, NonNegative
from crodobo.core.prediction import Adaptation
from crodobo.losses import entropies
from crodobo.methods.tent import TENT, TENTSettings
from crodobo.nn.learner import Learner

NONE_YET = -1.0  # marks a missing moving mean of the loss, which is never negative


class SARSettings(TENTSettings):
    """Which samples are learned, the length of the uphill step, and when to reset."""

    margin: Fraction = 0.4
    rho: NonNegative = 0.05
    reset_below: NonNegative = 0.2


class SAR(TENT):
    """Sharpness-aware and reliable entropy minimisation.

        ℓ = mean over samples with H < E0 = 0.4 ln C of H(p_t)
        at the weights θ + ρ g/‖g‖ with g the gradient at θ

    Samples that are uncertain at the moved weights are skipped too. If the moving mean of the loss falls below 0.2, the
    model counts as collapsed and is reset to its start. On an easy stream with confident, correct predictions this can
    happen without need.

    **Keeps.** Of the queries only one moving mean of the loss, a single number.

    **Use it** instead of `tent` when queries are small or have few classes.

    **Reference.** Niu et al., *Towards Stable Test-Time Adaptation in Dynamic Wild World*, ICLR 2023.

    Parameters
    ----------
    margin
        A prediction is confident if its entropy is below this share of ln C.
    rho
        Length ρ of the uphill step.
    reset_below
        Moving mean of the loss below which the model is reset.
    """

    name = "sar"
    Settings = SARSettings
    settings: SARSettings

    def prepare(self, learner: Learner) -> None:
        super().prepare(learner)
        weights = learner.learned
        learner.attach("start", lambda: Start([*weights, *learner.statistics]))

    def learn(self, learner: Learner, images: Tensor) -> Adaptation:
        """One step of one learner on the loss at the uphill weights."""
        start = learner.part("start")
        assert isinstance(start, Start)
        sure_below = self.settings.margin * math.log(len(self.source.classes))
        entropy = entropies(learner.forward(images))
        sure = entropy.detach() < sure_below
        if not sure.any():
            learner.forget()
            return Adaptation(kept=0.0, skipped=not entropy.isfinite().all())
        learner.accumulate(entropy[sure].mean())
        with uphill(learner.learned, self.settings.rho):
            entropy = entropies(learner.forward(images))[sure]
            still_sure = entropy.detach() < sure_below
            if not still_sure.any():
                learner.forget()
                return Adaptation(kept=0.0, skipped=not entropy.isfinite().all())
            loss = entropy[still_sure].mean()
            learner.accumulate(loss)
        updated = learner.update()
        if updated and start.collapsed(float(loss.detach()), self.settings.reset_below):
            start.put_back(learner)
        return Adaptation(kept=float(still_sure.sum()) / len(images), skipped=not updated)


@contextmanager
def uphill(weights: list[nn.Parameter], rho: float) -> Iterator[None]:
    """Inside the `with`, the weights are moved by ρ along their gradient, and the gradient is cleared."""
    start = [weight.detach().clone() for weight in weights]
    norm = nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    with torch.no_grad():
        for weight in weights:
            if weight.grad is not None:
                weight.add_(weight.grad / (norm + 1e-12), alpha=rho)
                weight.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in zip(weights, start, strict=True):
                weight.copy_(before)


class Start(nn.Module):
    """The initial weights and statistics, and the moving mean of the loss."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        for number, tensor in enumerate(tensors):
            self.register_buffer(f"tensor{number}", tensor.detach().clone())
        self.moving: Tensor
        self.register_buffer("moving", torch.tensor(NONE_YET))

    def collapsed(self, loss: float, below: float) -> bool:
        """Add a loss to the moving mean. Return whether the mean is below the bound."""
        self.moving.copy_(torch.tensor(loss) if self.moving == NONE_YET else 0.9 * self.moving + 0.1 * loss)
        return bool(self.moving < below)

    @torch.no_grad()
    def put_back(self, learner: Learner) -> None:
        """Reset the weights, the BatchNorm statistics and the optimiser."""
        for number, tensor in enumerate([*learner.learned, *learner.statistics]):
            tensor.copy_(self.get_buffer(f"tensor{number}"))
        learner.keep_statistics()
        learner.optimiser.state.clear()
        self.moving.fill_(NONE_YET)
