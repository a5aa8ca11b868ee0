"""Which statistics a query gets, given what was found in it."""

from typing import NamedTuple

from torch import Tensor

from crodobo.guard.domain import NEW, Domain
from crodobo.guard.mixedness import FULL
from crodobo.nn.target_statistics import QueryNorm

OWN_TRUST = 32  # samples from which a query's own statistics get their full weight
MOMENTUM, SLOWEST = 0.1, 0.25  # BatchNorm's usual momentum, and the least share of it in a domain far away


class Found(NamedTuple):
    """What was found in a query."""

    samples: int
    learned: int  # samples that may be learned; the running statistics follow only these
    mix: Tensor | None  # its classes, if they are fewer than usual
    narrowness: float
    far: bool  # whether it is of another domain than the stream so far
    new: bool  # whether the stream has changed its domain for good
    missed: float  # how certain it is that it is part of a burst which the learners do not see


def choose_norm(found: Found, own: float, domain: Domain, blindness: float) -> QueryNorm:
    """Which statistics a query gets. `own` is the weight of a mixed query's own statistics at prediction."""
    missed, shown, learned_own = found.missed, own * trust(found.samples), trust(found.learned)
    if found.far:  # the running statistics are of another domain
        share, learned = of_new(found.samples), of_new(found.learned)
        return QueryNorm(found.mix, share, learned, learned if found.new else 0.0)
    usual = MOMENTUM * min(1.0, found.learned / FULL)
    if found.mix is not None:
        return QueryNorm(found.mix, shown * sharing(found.narrowness), learned_own, usual)
    # At first the source counts as one query; as more if it is near and a burst might have been missed.
    remote = domain.remote
    trusted = 1.0 if remote else (1 - blindness) * (1 - missed)
    momentum = max(usual, trusted * found.learned / (float(domain.samples) + found.learned + FULL))
    if remote:
        return QueryNorm(None, shown * (1 - missed), learned_own, momentum * max(SLOWEST, 1 - missed))
    return QueryNorm(None, shown, learned_own, momentum * (1 - missed), doubt=missed)


def of_new(count: int) -> float:
    """The weight of the first samples of another domain."""
    return count / (count + NEW) if count > 1 else 0.0


def trust(count: int) -> float:
    """How far the own statistics of a query of `count` samples are to be trusted."""
    return min(1.0, max(0, count - 1) / (OWN_TRUST - 1))


def sharing(narrowness: float) -> float:
    """How far the own statistics of a narrow query may be used before they are corrected: not at all for one class."""
    return min(1.0, 2 - 2 * narrowness)
