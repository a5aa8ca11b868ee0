"""CroDoBo: cross-domain bootstrapping with exchanged pseudo-labels (section 3 of the paper)."""

from typing import ClassVar, NamedTuple

import torch
from pydantic import field_validator
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import Fraction, MethodSettings, NonNegative, Positive
from crodobo.core.prediction import Adaptation
from crodobo.core.query import Query
from crodobo.core.source import SourceBatch
from crodobo.methods.base import Method
from crodobo.methods.mixing import mixed_loss
from crodobo.methods.objective import DEFAULT, Objective, Weights, of_learners, parse_objectives
from crodobo.nn.learner import Learner


class CroDoBoSettings(MethodSettings):
    """The paper's two hyperparameters, with its values for them, and the target objective."""

    learners: Positive = 2
    tau: Fraction = 0.95
    lam: NonNegative = 0.4
    objective: str = DEFAULT

    @field_validator("objective")
    @classmethod
    def check_objective(cls, text: str) -> str:
        parse_objectives(text)
        return text


class Look(NamedTuple):
    """What a learner makes of the query's weak views before any update, and the source samples it met it with."""

    probabilities: Tensor
    guess: Tensor
    source: SourceBatch | None


class CroDoBo(Method):
    """K learners, each on its own bootstrap of the source, supervise each other on the query.

        ℓ = ℓ_s + ℓ_t + ℓ_ent + λ ℓ_div
        ℓ_s    cross-entropy on the learner's own source bootstrap
        ℓ_t    1/B Σ_b 1[max p_peer(weak_b) ≥ τ] · CE(argmax p_peer(weak_b), p(strong_b))
        ℓ_ent  mean H(p(weak))
        ℓ_div  Σ_c p̄_c log p̄_c,  p̄ the mean of p(weak)

    All pseudo-labels are taken before any learner is updated; the query's prediction is the average of the updated
    learners. With one learner it is its own peer, which is the paper's ablation "w/o CroDoBo" (`single`).

    **Keeps.** Nothing of a query.

    **Use it** when the labelled source can stay at hand and the stream's classes are mixed: it is the method of choice
    here. On streams whose classes come in long bursts the diversity term pulls the wrong way; see *Streams and bursts*.

    **Reference.** Yang et al., *Burn After Reading: Online Adaptation for Cross-domain Streaming Data*, ECCV 2022,
    arXiv 2112.04345.

    Parameters
    ----------
    tau
        Confidence from which on a peer's pseudo-label is learned.
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
    Settings: ClassVar[type[MethodSettings]] = CroDoBoSettings
    settings: CroDoBoSettings

    def adapt(self, query: Query, images: Tensor) -> Adaptation:
        objectives = of_learners(parse_objectives(self.settings.objective), len(self.learners))
        weak = query.own(self.augment.weak(images, self.generator))
        strong = query.own(self.augment.strong(images, self.generator))
        mixes = any(objective.mixes for objective in objectives)
        second = query.own(self.augment.weak(images, self.generator)) if mixes else None

        # 3.2.1  Cross-domain bootstrapping: the query meets another source batch in each learner.
        looks = self.engine.map(
            lambda learner, objective: self.look(learner, objective, weak, second), self.learners, objectives
        )

        # 3.2.2  Co-supervision: all pseudo-labels are taken here, before any learner is updated.
        peers = average_of_peers([look.probabilities for look in looks])
        guesses = average_of_peers([look.guess for look in looks])

        def update(learner: Learner, objective: Objective, look: Look, peer: Tensor, guess: Tensor) -> bool:
            if objective.mixes and second is not None and look.source is not None:
                learner.accumulate(mixed_loss(learner, look.source, (weak, second), guess, query.own))
            if objective.sees_strong:
                learner.accumulate(objective.strong(learner.forward(strong), peer, self.weights))
            return learner.update()

        updated = self.engine.map(update, self.learners, objectives, looks, peers, guesses)
        labelled = any(objective.takes_labels for objective in objectives)
        kept = torch.stack(peers).amax(dim=2) >= self.settings.tau
        return Adaptation(
            kept=float(kept.float().mean()) if labelled else None,
            skipped=updated.count(False),
            bootstrap=tuple(look.source.indices for look in looks if look.source),
        )

    def look(self, learner: Learner, objective: Objective, weak: Tensor, second: Tensor | None) -> Look:
        """ℓ_s on the learner's own bootstrap, ℓ_ent + λ ℓ_div on the weak view."""
        source = self.learn_source(learner, len(weak))
        logits = learner.forward(weak)
        learner.accumulate(objective.weak(logits, self.weights))
        probabilities = torch.softmax(logits.detach(), dim=1)
        if second is None:
            return Look(probabilities, probabilities, source)
        with torch.no_grad():
            other = torch.softmax(learner.forward(second), dim=1)
        return Look(probabilities, (probabilities + other) / 2, source)

    def learn_source(self, learner: Learner, size: int) -> SourceBatch | None:
        """ℓ_s: cross-entropy on a bootstrap of the source; what was drawn, as the learner saw it."""
        batch = self.source.bootstrap(size, learner.generator)
        batch = batch._replace(images=self.augment.weak(batch.images, learner.generator))
        learner.accumulate(F.cross_entropy(learner.forward(batch.images), batch.labels))
        return batch

    @property
    def weights(self) -> Weights:
        """τ and λ, for the terms of the objective."""
        return Weights(self.settings.tau, self.settings.lam)


def average_of_peers(probabilities: list[Tensor]) -> list[Tensor]:
    """For each learner the mean probabilities of all the others; a lone learner is its own peer.

    >>> average_of_peers([torch.tensor([0.0]), torch.tensor([0.5]), torch.tensor([1.0])])
    [tensor([0.7500]), tensor([0.5000]), tensor([0.2500])]
    """
    if len(probabilities) == 1:
        return probabilities
    return [torch.stack([other for other in probabilities if other is not own]).mean(dim=0) for own in probabilities]
