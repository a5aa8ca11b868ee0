"""SAR: TENT on confident samples, towards flat minima, with a reset after a collapse."""

import math
from statistics import fmean

import torch
from torch import Tensor, nn

from crodobo.config import Fraction, NonNegative
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
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

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        learned = self.engine.map(lambda learner: self.learn(learner, images), self.learners)
        return Adaptation(kept=fmean(kept for kept, _ in learned), skipped=sum(not updated for _, updated in learned))

    def learn(self, learner: Learner, images: Tensor) -> tuple[float, bool]:
        """Step on the loss at the uphill weights. Return the share of samples learned and whether it was taken."""
        start = learner.part("start")
        assert isinstance(start, Start)
        sure_below = self.settings.margin * math.log(len(self.source.classes))
        entropy = entropies(learner.forward(images))
        sure = entropy.detach() < sure_below
        if not sure.any():
            learner.forget()
            return 0.0, bool(entropy.isfinite().all())
        learner.accumulate(entropy[sure].mean())
        with uphill(learner.learned, self.settings.rho):
            entropy = entropies(learner.forward(images))[sure]
            still_sure = entropy.detach() < sure_below
            if not still_sure.any():
                learner.forget()
                return 0.0, bool(entropy.isfinite().all())
            loss = entropy[still_sure].mean()
            learner.accumulate(loss)
        updated = learner.update()
        if updated and start.collapsed(float(loss.detach()), self.settings.reset_below):
            start.put_back(learner)
        return float(still_sure.sum()) / len(images), updated


class uphill:  # noqa: N801  used like a function of contextlib
    """Inside the `with`, the weights are moved by ρ along their gradient, and the gradient is cleared."""

    def __init__(self, weights: list[nn.Parameter], rho: float) -> None:
        self.weights, self.rho = weights, rho

    @torch.no_grad()
    def __enter__(self) -> None:
        self.before = [weight.detach().clone() for weight in self.weights]
        norm = nn.utils.get_total_norm([weight.grad for weight in self.weights if weight.grad is not None])
        for weight in self.weights:
            if weight.grad is not None:
                weight.add_(weight.grad / (norm + 1e-12), alpha=self.rho)
                weight.grad = None

    @torch.no_grad()
    def __exit__(self, *error: object) -> None:
        for weight, before in zip(self.weights, self.before, strict=True):
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
