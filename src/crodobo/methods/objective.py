"""The target objective as a sum of small terms, so that an ablation is one line of text.

An objective is written as terms joined by plus signs. Learners can use different objectives, separated by bars and
assigned in turn: ``mixmatch + entropy + diversity | co-supervision + entropy + diversity``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from crodobo.losses import co_supervision, diversity, entropy

CO_SUPERVISION = "co-supervision"
MIXMATCH = "mixmatch"


class Coefficients(NamedTuple):
    """τ and λ, for the terms of an objective."""

    tau: float
    lam: float
    usual: Tensor | None = None  # the usual class mix, where that of the query itself is narrow


# A term is a function of a view's logits and the peers' probabilities of the weak view.
Term = Callable[[Tensor, Tensor, Coefficients], Tensor]

WEAK: dict[str, Term] = {
    "entropy": lambda logits, peer, given: entropy(logits),
    "diversity": lambda logits, peer, given: given.lam * diversity(logits, given.usual),
    "pseudo-labels": lambda logits, peer, given: co_supervision(logits, torch.softmax(logits, 1), given.tau),
}
STRONG: dict[str, Term] = {
    CO_SUPERVISION: lambda logits, peer, given: co_supervision(logits, peer, given.tau),
    "strong-entropy": WEAK["entropy"],
    "strong-diversity": WEAK["diversity"],
}
TERMS = (*STRONG, *WEAK, MIXMATCH)

DEFAULT = "co-supervision + entropy + diversity"
# The paper's ablations (Tables 6 and 8) by name.
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
    """The losses of one learner on the query."""

    terms: tuple[str, ...]

    @property
    def mixes(self) -> bool:
        """Whether MixMatch is one of the terms."""
        return MIXMATCH in self.terms

    @property
    def takes_labels(self) -> bool:
        """Whether a term learns from confident pseudo-labels."""
        return CO_SUPERVISION in self.terms or "pseudo-labels" in self.terms

    @property
    def sees_strong(self) -> bool:
        """Whether a term needs the strong view."""
        return any(term in STRONG for term in self.terms)

    def weak(self, logits: Tensor, given: Coefficients) -> Tensor:
        """The sum of the terms on the weak view."""
        return self._sum(WEAK, logits, logits, given)

    def strong(self, logits: Tensor, peer: Tensor, given: Coefficients) -> Tensor:
        """The sum of the terms on the strong view."""
        return self._sum(STRONG, logits, peer, given)

    def _sum(self, kinds: dict[str, Term], logits: Tensor, peer: Tensor, given: Coefficients) -> Tensor:
        losses = [kinds[term](logits, peer, given) for term in self.terms if term in kinds]
        return torch.stack(losses).sum() if losses else logits.sum() * 0.0


def parse_objectives(text: str) -> tuple[Objective, ...]:
    """Parse the name of a preset, or terms, into the objectives that are assigned to the learners in turn.

    >>> parse_objectives("without-entropy")
    (Objective(terms=('co-supervision', 'diversity')),)
    >>> [objective.mixes for objective in parse_objectives("mixmatch | entropy + diversity")]
    [True, False]
    >>> parse_objectives("entropy + sharpness")
    Traceback (most recent call last):
    ...
    ValueError: there is no term 'sharpness'; the terms are co-supervision, ... and the presets are default, ...
    """
    return tuple(_objective(part) for part in PRESETS.get(text.strip(), text).split("|"))


def _objective(text: str) -> Objective:
    terms = tuple(term.strip() for term in text.split("+"))
    for term in terms:
        if term not in TERMS:
            raise ValueError(
                f"there is no term {term!r}; the terms are {', '.join(TERMS)}, joined by + (and | between learners), "
                f"and the presets are {', '.join(PRESETS)}"
            )
        if terms.count(term) > 1:
            raise ValueError(f"the term {term} is given twice")
    return Objective(terms)


def assign_objectives(objectives: tuple[Objective, ...], learners: int) -> list[Objective]:
    """The objective of each learner."""
    return [objectives[number % len(objectives)] for number in range(learners)]
