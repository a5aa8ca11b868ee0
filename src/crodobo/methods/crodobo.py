"""CroDoBo: cross-domain bootstrapping with exchanged pseudo-labels (section 3 of the paper)."""

from typing import ClassVar, NamedTuple

import torch
from pydantic import field_validator
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import Fraction, MethodSettings, NonNegative, Positive
from crodobo.core.prediction import Adaptation, join_adaptations
from crodobo.core.query import Query
from crodobo.core.source import SourceBatch
from crodobo.guard.protection import Protection
from crodobo.guard.watch import Watch
from crodobo.methods.base import Method
from crodobo.methods.mixing import mixed_loss
from crodobo.methods.objective import DEFAULT, Coefficients, Objective, assign_objectives, parse_objectives
from crodobo.nn.learner import Learner


class CroDoBoSettings(MethodSettings):
    """The paper's two hyperparameters, and the target objective."""

    learners: Positive = 2
    tau: Fraction = 0.95
    lam: NonNegative = 0.4
    objective: str = DEFAULT

    @field_validator("objective")
    @classmethod
    def check_objective(cls, text: str) -> str:
        parse_objectives(text)
        return text


class FirstPass(NamedTuple):
    """A learner's predictions of the query before any update, and its source batch."""

    probabilities: Tensor  # of the weak view
    guess: Tensor  # for MixMatch: the mean over two weak views
    source: SourceBatch | None


class CroDoBo(Method):
    """K learners, each on its own bootstrap of the source, supervise each other on the query.

        ℓ = ℓ_s + ℓ_t + ℓ_ent + λ ℓ_div
        ℓ_s    cross-entropy on the learner's own source bootstrap
        ℓ_t    1/B Σ_b 1[max p_peer(weak_b) ≥ τ] · CE(argmax p_peer(weak_b), p(strong_b))
        ℓ_ent  mean H(p(weak))
        ℓ_div  Σ_c p̄_c log p̄_c,  p̄ the mean of p(weak)

    All pseudo-labels are taken before any learner is updated. The prediction is the average of the updated learners.
    A single learner is its own peer, which is the paper's ablation "w/o CroDoBo" (`single`).

    **Keeps.** Nothing of a query.

    **Use it** when the labelled source is available. It is the recommended method. Bursts of few classes, short queries
    and noise are watched for (`crodobo.guard.watch`), unless `plain` is set; see *Streams and bursts*.

    **Reference.** Yang et al., *Burn After Reading: Online Adaptation for Cross-domain Streaming Data*, ECCV 2022,
    arXiv 2112.04345.

    Parameters
    ----------
    tau
        Confidence τ from which a peer's pseudo-label is learned.
    lam
        Weight λ of the diversity term.
    objective
        The target objective: terms joined by plus signs, or the name of a preset (`crodobo.methods.objective`).

    Examples
    --------
    >>> import torch
    >>> from crodobo import Query, Source
    >>> source = Source(torch.rand(20, 1, 32, 32), [0, 1] * 10)
    >>> method = CroDoBo(source, learners=2, warmup=1)
    >>> with Query(torch.rand(4, 1, 32, 32)) as query:
    ...     prediction = method.step(query)
    >>> prediction.probabilities.shape
    torch.Size([4, 2])
    """

    name = "crodobo"
    protected: ClassVar[bool] = True  # whether streams that are not mixed get the protection of `Watch`
    Settings: ClassVar[type[MethodSettings]] = CroDoBoSettings
    settings: CroDoBoSettings

    def make_guard(self) -> Protection:
        if self.settings.plain or not self.protected:
            return super().make_guard()
        return Watch(self.learners, self.source, self.show_source, own=1 - self.settings.running_weight)

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        lesson = self.guard.lesson
        if not lesson.weight:
            return self.adapt_without_target(query, images)
        given = self.coefficients._replace(usual=lesson.usual)
        objectives = assign_objectives(parse_objectives(self.settings.objective), len(self.learners))
        weak = query.own(self.augment.weak(images, self.generator))
        strong = query.own(self.augment.strong(images, self.generator))
        mixes = any(objective.mixes for objective in objectives)
        second = query.own(self.augment.weak(images, self.generator)) if mixes else None

        # 3.2.1  Cross-domain bootstrapping: learner k meets the query T_j with its own source batch S_j^k.
        def first_pass(learner: Learner, objective: Objective) -> FirstPass:
            source = self.learn_source(learner, max(len(weak), lesson.least_source), query, images)
            logits = learner.forward_query(weak)
            learner.accumulate(lesson.weight * objective.weak(logits, given))  # ℓ_ent + λ ℓ_div
            probabilities = torch.softmax(logits.detach(), dim=1)
            if second is None:
                return FirstPass(probabilities, probabilities, source)
            with torch.no_grad():
                guess = (probabilities + torch.softmax(learner.forward_query(second), dim=1)) / 2
            return FirstPass(probabilities, guess, source)

        passes = self.engine.map(first_pass, self.learners, objectives)

        # 3.2.2  Co-supervision: exchange pseudo-labels before any learner is updated, then update all.
        peers = average_of_peers([each.probabilities for each in passes])
        guesses = average_of_peers([each.guess for each in passes])
        self.guard.note_weak([each.probabilities for each in passes])

        def update(learner: Learner, objective: Objective, first: FirstPass, peer: Tensor, guess: Tensor) -> bool:
            if objective.mixes and second is not None and first.source is not None:
                learner.accumulate(mixed_loss(learner, first.source, (weak, second), guess, query.own))
            if objective.sees_strong:
                learner.accumulate(lesson.weight * objective.strong(learner.forward_query(strong), peer, given))  # ℓ_t
            return learner.update()

        updated = self.engine.map(update, self.learners, objectives, passes, peers, guesses)
        confident = torch.stack(peers).amax(dim=2) >= self.settings.tau
        return Adaptation(
            kept=float(confident.float().mean()) if any(each.takes_labels for each in objectives) else None,
            skipped=updated.count(False),
            bootstrap=tuple(each.source.indices for each in passes if each.source),
        )

    def learn_source(self, learner: Learner, size: int, query: Query, images: Tensor) -> SourceBatch | None:
        """ℓ_s: cross-entropy on a bootstrap of the source. Return the batch as the learner saw it."""
        batch = self.draw_source(learner, size, query, images)
        if learner.target:
            with learner.target.source(batch.labels if self.guard.measures_classes(self.steps) else None):
                logits = learner.forward(batch.images)
        else:
            logits = learner.forward(batch.images)
        learner.accumulate(F.cross_entropy(logits, batch.labels))
        return batch

    def adapt_without_target(self, query: Query, images: Tensor) -> Adaptation:
        """Learn the source alone. Of the query, only the BatchNorm statistics are followed."""
        size = self.guard.source_due(len(images), self.settings.warmup_batch)

        def learn(learner: Learner) -> Adaptation:
            with torch.no_grad():
                learner.forward_query(images)
            learner.keep_statistics()
            if not size:
                return Adaptation()
            learner.step_size = min(1.0, size / self.settings.warmup_batch)
            source = self.learn_source(learner, size, query, images)
            return Adaptation(skipped=not learner.update(), bootstrap=(source.indices,) if source else ())

        return join_adaptations(self.engine.map(learn, self.learners))

    @property
    def coefficients(self) -> Coefficients:
        """τ and λ, for the terms of the objective."""
        return Coefficients(self.settings.tau, self.settings.lam)


def average_of_peers(probabilities: list[Tensor]) -> list[Tensor]:
    """For each learner the mean probabilities of all others. A single learner is its own peer.

    >>> first, second = average_of_peers([torch.tensor([0.2]), torch.tensor([0.9])])
    >>> first, second
    (tensor([0.9000]), tensor([0.2000]))
    """
    if len(probabilities) == 1:
        return probabilities
    return [torch.stack([other for other in probabilities if other is not own]).mean(dim=0) for own in probabilities]
