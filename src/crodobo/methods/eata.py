"""EATA: TENT on confident and new samples, with a pull towards the source's weights."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from crodobo.config import Fraction, NonNegative, Positive
from crodobo.core.prediction import Adaptation
from crodobo.losses import entropies
from crodobo.methods.tent import TENT, TENTSettings
from crodobo.nn.learner import Learner


class EATASettings(TENTSettings):
    """Which samples are learned, and the strength of the pull to the source's weights."""

    margin: Fraction = 0.4
    redundancy: NonNegative | None = None  # None: 0.4 for ten classes, proportional to 1/√C
    fisher: NonNegative = 2000.0
    fisher_samples: Positive = 512


class EATA(TENT):
    """Efficient anti-forgetting test-time adaptation: skip uncertain and redundant samples, and do not forget.

        ℓ = mean over kept samples of e^(E0 − H) · H(p_t)  +  β Σ_i F_i (θ_i − θ_i^source)²
        kept: H < E0 = 0.4 ln C and |cos(p, p̄)| < ε
        p̄    the moving mean of kept predictions

    The Fisher information F is computed on source samples with the model's own predictions as labels. The bound ε is
    0.4 for ten classes and scales with 1/√C, as does the cosine of a confident prediction and a uniform mean.

    **Keeps.** Of the queries only one moving mean of predictions, a vector of C numbers.

    **Use it** instead of `tent` on long streams, where TENT forgets.

    **Reference.** Niu et al., *Efficient Test-Time Model Adaptation without Forgetting*, ICML 2022.

    Parameters
    ----------
    margin
        A prediction is confident if its entropy is below this share of ln C.
    redundancy
        Similarity ε to the moving mean from which a sample is skipped.
    fisher
        Weight β of the pull to the source's weights.
    fisher_samples
        The number of source samples for the Fisher information.
    """

    name = "eata"
    Settings = EATASettings
    settings: EATASettings

    def prepare(self, learner: Learner) -> None:
        super().prepare(learner)
        with torch.inference_mode(False), torch.enable_grad():
            weights, information = learner.learned, self.fisher_information(learner)
        learner.attach("memory", lambda: FisherMemory(weights, information, len(self.source.classes)))

    def fisher_information(self, learner: Learner) -> list[Tensor]:
        """Mean squared gradient of each weight on source samples that the model labels itself."""
        batches = math.ceil(self.settings.fisher_samples / self.settings.warmup_batch)
        information = [torch.zeros_like(weight) for weight in learner.learned]
        for _ in range(batches):
            logits = learner.forward(self.source.bootstrap(self.settings.warmup_batch, learner.generator).images)
            learner.accumulate(F.cross_entropy(logits, logits.argmax(dim=1)))
            for weight, sum_of_squares in zip(learner.learned, information, strict=True):
                if weight.grad is not None:
                    sum_of_squares += weight.grad.square() / batches
            learner.forget()
        return information

    def learn(self, learner: Learner, images: Tensor) -> Adaptation:
        """One step of one learner on the selected samples."""
        memory = learner.part("memory")
        assert isinstance(memory, FisherMemory)
        classes = len(self.source.classes)
        bound = self.settings.redundancy if self.settings.redundancy is not None else 0.4 * math.sqrt(10 / classes)
        logits = learner.forward(images)
        entropy = entropies(logits)
        probabilities = torch.softmax(logits.detach(), dim=1)
        sure_below = self.settings.margin * math.log(classes)
        kept = (entropy.detach() < sure_below) & (memory.similarity(probabilities) < bound)
        if not kept.any():
            learner.forget()
            return Adaptation(kept=0.0, skipped=not entropy.isfinite().all())
        weights = torch.exp(sure_below - entropy.detach()[kept])
        pull = self.settings.fisher * memory.distance(learner.learned)
        updated = learner.update((weights * entropy[kept]).mean() + pull)
        if updated:
            memory.remember(probabilities[kept])
        return Adaptation(kept=float(kept.float().mean()), skipped=not updated)


class FisherMemory(nn.Module):
    """The source's weights with their Fisher information, and the moving mean of predictions."""

    def __init__(self, weights: list[nn.Parameter], information: list[Tensor], classes: int) -> None:
        super().__init__()
        for number, (weight, fisher) in enumerate(zip(weights, information, strict=True)):
            self.register_buffer(f"weight{number}", weight.detach().clone())
            self.register_buffer(f"fisher{number}", fisher)
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(classes))

    def similarity(self, probabilities: Tensor) -> Tensor:
        """|cos| of each prediction and the moving mean; 0 before the first batch."""
        return F.cosine_similarity(probabilities, self.mean[None], dim=1).abs()

    def remember(self, probabilities: Tensor) -> None:
        """Move the mean towards a batch of predictions. The first batch sets it."""
        share = 0.1 if self.mean.any() else 1.0
        self.mean.lerp_(probabilities.mean(dim=0), share)

    def distance(self, weights: list[nn.Parameter]) -> Tensor:
        """Σ F (θ − θ_source)²."""
        parts = []
        for number, weight in enumerate(weights):
            source, fisher = self.get_buffer(f"weight{number}"), self.get_buffer(f"fisher{number}")
            parts.append((fisher * (weight - source).square()).sum())
        return torch.stack(parts).sum()
