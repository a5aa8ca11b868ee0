"""The target objective as a composition of small terms, so that an ablation is a line and not a copy.

An objective is written as its terms with plus signs between them. Learners share it, or take turns with several
that are set apart by a bar: ``mixmatch + entropy + diversity | co-supervision + entropy + diversity``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from crodobo.losses import co_supervision, diversity, entropy

CO_SUPERVISION = "co-supervision"
MIXMATCH = "mixmatch"


@dataclass(frozen=True)
class Weights:
    """The numbers that terms depend on."""

    tau: float
    lam: float


# What a term makes of a view's logits and of the peers' probabilities of the weak view.
Term = Callable[[Tensor, Tensor, Weights], Tensor]

WEAK: dict[str, Term] = {
    "entropy": lambda logits, peer, weights: entropy(logits),
    "diversity": lambda logits, peer, weights: weights.lam * diversity(logits),
    "pseudo-labels": lambda logits, peer, weights: co_supervision(logits, torch.softmax(logits, 1), weights.tau),
}
STRONG: dict[str, Term] = {
    CO_SUPERVISION: lambda logits, peer, weights: co_supervision(logits, peer, weights.tau),
    "strong-entropy": WEAK["entropy"],
    "strong-diversity": WEAK["diversity"],
}
TERMS = (*STRONG, *WEAK, MIXMATCH)

DEFAULT = "co-supervision + entropy + diversity"
# The paper's ablations (Tables 6 and 8): a name for each.
PRESETS = {
    "default": DEFAULT,
    "without-entropy": "co-supervision + diversity",
    "without-diversity": "co-supervision + entropy",
    "pseudo-labels-for-entropy-diversity": "co-supervision + pseudo-labels",
    "mixmatch-for-entropy-diversity": "co-supervision + mixmatch",
    "mixmatch-for-co-supervision": "mixmatch + entropy + diversity",
    "randaugment": "co-supervision + strong-entropy + strong-diversity",
    "mixmatch-fixmatch": "mixmatch + entropy + diversity | co-supervision + entropy + diversity",
}


@dataclass(frozen=True)
class Objective:
    """What one learner minimises on the query, beside the source's cross-entropy."""

    terms: tuple[str, ...]

    @property
    def mixes(self) -> bool:
        """Whether MixMatch is among the terms."""
        return MIXMATCH in self.terms

    @property
    def takes_labels(self) -> bool:
        """Whether a term learns from confident pseudo-labels."""
        return CO_SUPERVISION in self.terms or "pseudo-labels" in self.terms

    @property
    def sees_strong(self) -> bool:
        """Whether a term needs the strong view."""
        return any(term in STRONG for term in self.terms)

    def weak(self, logits: Tensor, weights: Weights) -> Tensor:
        """The sum of the terms on the weak view."""
        return self._sum(WEAK, logits, logits, weights)

    def strong(self, logits: Tensor, peer: Tensor, weights: Weights) -> Tensor:
        """The sum of the terms on the strong view."""
        return self._sum(STRONG, logits, peer, weights)

    def _sum(self, kinds: dict[str, Term], logits: Tensor, peer: Tensor, weights: Weights) -> Tensor:
        losses = [kinds[term](logits, peer, weights) for term in self.terms if term in kinds]
        return torch.stack(losses).sum() if losses else logits.sum() * 0.0


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """The objectives that learners take turns with, from a preset's name or from terms.

    >>> parse_objectives("without-entropy")
    (Objective(terms=('co-supervision', 'diversity')),)
    >>> [objective.mixes for objective in parse_objectives("mixmatch | entropy + diversity")]
    [True, False]
    >>> parse_objectives("entropy + sharpness")
    Traceback (most recent call last):
    ...
    ValueError: there is no term 'sharpness'; the terms are co-supervision, ... and the presets default, ...
    """
    return tuple(_objective(part) for part in PRESETS.get(text.strip(), text).split("|"))


def _objective(text: str) -> Objective:
    terms = tuple(term.strip() for term in text.split("+"))
    for term in terms:
        if term not in TERMS:
            raise ValueError(
                f"there is no term {term!r}; the terms are {', '.join(TERMS)}, joined by + (and | between learners), "
                f"and the presets {', '.join(PRESETS)}"
            )
        if terms.count(term) > 1:
            raise ValueError(f"the term {term} is named twice")
    return Objective(terms)


def of_learners(objectives: tuple[Objective, ...], learners: int) -> list[Objective]:
    """Each learner's objective."""
    return [objectives[number % len(objectives)] for number in range(learners)]
