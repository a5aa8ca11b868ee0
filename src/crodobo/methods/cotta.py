"""CoTTA: a student learns from its moving average and is partly reset to the source."""

from copy import deepcopy

import torch
from torch import Tensor, nn

from crodobo.config import AboveZero, Fraction, MethodSettings, Norm, Positive
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.methods.base import Method
from crodobo.nn.learner import Learner
from crodobo.nn.normalisation import batch_norms, batch_statistics, mixed_statistics


class CoTTASettings(MethodSettings):
    """The speed of the teacher, when its labels are averaged over views, and how much is restored."""

    norm: Norm = "query"
    adapt_lr: AboveZero = 1e-3
    momentum: Fraction = 0.999
    sure_from: Fraction = 0.92
    views: Positive = 32
    restore: Fraction = 0.01


class CoTTA(Method):
    """Continual test-time adaptation with a teacher, the moving average of its student.

        ℓ = −mean Σ_c q_c log p_c
        q        the teacher's prediction, averaged over 32 views if the source model is uncertain
        teacher ← 0.999 · teacher + 0.001 · student
        student: each weight is reset to the source's with a probability of 1 %

    The teacher predicts. On a stream of some dozen queries it hardly changes, and is close to `bn-statistics`.

    **Keeps.** Nothing of a query. Each learner has three networks.

    **Use it** on streams of thousands of queries whose domain changes over time.

    **Reference.** Wang, Fink, Van Gool and Dai, *Continual Test-Time Domain Adaptation*, CVPR 2022.

    Parameters
    ----------
    adapt_lr
        The student's learning rate.
    momentum
        The share of the teacher that stays at each query.
    sure_from
        Mean confidence of the source model from which the teacher labels the query without views.
    views
        The number of weak views to average below that confidence.
    restore
        The share of the student's weights that are reset at each query.
    """

    name = "cotta"
    Settings = CoTTASettings
    settings: CoTTASettings

    def prepare(self, learner: Learner) -> None:
        learner.attach("anchor", lambda: deepcopy(learner.network).requires_grad_(False))
        student = learner.attach("student", lambda: deepcopy(learner.network))
        learner.learn_only(student.parameters(), self.settings.adapt_lr)

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        updated = self.engine.map(lambda learner: self.learn(learner, images), self.learners)
        return Adaptation(skipped=updated.count(False))

    def learn(self, learner: Learner, images: Tensor) -> bool:
        """The student learns the teacher's labels, the teacher follows, and part of the student is reset."""
        student, anchor = learner.part("student"), learner.part("anchor")
        labels = self.labels(learner, anchor, images)
        with batch_statistics(batch_norms(student), len(images)):
            logits = student(images)
        updated = learner.update(-(labels * torch.log_softmax(logits, dim=1)).sum(dim=1).mean())
        if updated:
            follow(learner.network, student, self.settings.momentum)
            restore(student, anchor, self.settings.restore, learner.generator)
            learner.keep_statistics()
        return updated

    @torch.no_grad()
    def labels(self, learner: Learner, anchor: nn.Module, images: Tensor) -> Tensor:
        """The teacher's predictions, averaged over views if the source model is uncertain."""
        with mixed_statistics(batch_norms(anchor), 0.0 if len(images) > 1 else 1.0):
            confidence = torch.softmax(anchor(images), dim=1).amax(dim=1).mean()
        if confidence >= self.settings.sure_from:
            return learner.predict(images)
        total = torch.zeros(len(images), len(self.source.classes))
        for _ in range(self.settings.views):
            view = self.augment.weak(images, learner.generator)
            total += learner.predict(view)
            if view is not images:
                view.zero_()  # erased here: all views together would be many times the query's size
        return total / self.settings.views


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, momentum: float) -> None:
    """Move the teacher a little towards the student, including its statistics."""
    for old, new in zip(teacher.state_dict().values(), student.state_dict().values(), strict=True):
        if old.is_floating_point():
            old.lerp_(new, 1 - momentum)


@torch.no_grad()
def restore(student: nn.Module, anchor: nn.Module, share: float, generator: torch.Generator) -> None:
    """Reset a random share of the student's weights to the source's."""
    for weight, source in zip(student.parameters(), anchor.parameters(), strict=True):
        chosen = torch.rand(weight.shape, generator=generator) < share
        weight.copy_(torch.where(chosen, source, weight))
