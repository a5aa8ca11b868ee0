"""Stream orders: permutations of the target that depend only on its labels and a seed."""

import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Generator, Tensor

from crodobo.errors import BadSettings

StreamOrder = Callable[[Tensor, int], Tensor]

ALPHA = 0.1  # the default of a dirichlet order; a query of ten classes is then as mixed as one of three
SLOT = 64  # mean number of samples in a time slot of a dirichlet order: the usual query size
SPREAD = 0.2  # standard deviation of a class around its centre in a drift, as a share of the stream


def shuffled(labels: Tensor, seed: int) -> Tensor:
    """A random order."""
    return torch.randperm(len(labels), generator=Generator().manual_seed(seed))


def by_class(labels: Tensor, seed: int) -> Tensor:
    """One class after the other, in random order within a class."""
    order = shuffled(labels, seed)
    return order[labels[order].argsort(stable=True)]


def dirichlet(labels: Tensor, seed: int, alpha: float = ALPHA) -> Tensor:
    """Classes in bursts: strong ones for a small `alpha`, almost a random order for a large one.

    Each class spreads over the time slots of the stream in proportions drawn from Dirichlet(`alpha`), and each of
    its samples draws a slot from them. Within a slot the order is random.
    """
    random = np.random.default_rng(seed)
    classes, class_of = np.unique(labels.numpy(), return_inverse=True)
    slots = max(math.ceil(len(labels) / SLOT), len(classes))  # a short target comes in bursts too
    even_enough = 1e9  # larger values change nothing, but make a sum overflow
    proportions = random.dirichlet(np.full(slots, min(alpha, even_enough)), size=len(classes))
    drawn, slot = random.random(len(labels)), np.empty(len(labels), dtype=np.int64)
    for number, edges in enumerate(proportions.cumsum(axis=1)):
        own = class_of == number
        slot[own] = np.searchsorted(edges, drawn[own], side="right")
    return torch.from_numpy(np.lexsort((random.random(len(labels)), slot)))


def drift(labels: Tensor, seed: int) -> Tensor:
    """Classes come and go: each has a centre in time, and its samples arrive around it.

    The centres are evenly spaced, in a random order of the classes.
    """
    generator = Generator().manual_seed(seed)
    classes, class_of = labels.unique(return_inverse=True)
    centres = (torch.randperm(len(classes), generator=generator) + 0.5) / len(classes)
    arrival = centres[class_of] + SPREAD * torch.randn(len(labels), generator=generator)
    return arrival.argsort(stable=True)


PLAIN: dict[str, StreamOrder] = {"random": shuffled, "by-class": by_class, "drift": drift}


def stream_order(name: str) -> StreamOrder:
    """The order by name: random, by-class, dirichlet(α) or drift."""
    return PLAIN[name] if name in PLAIN else partial(dirichlet, alpha=_alpha(name))


def full_name(name: str) -> str:
    """The name of an order with its parameter, always spelled the same way: dirichlet(5), not dirichlet(5.0)."""
    return name if name in PLAIN else f"dirichlet({str(_alpha(name)).removesuffix('.0')})"


def _alpha(name: str) -> float:
    """The α of a dirichlet order."""
    parts = re.fullmatch(r"dirichlet(?:\((.*)\))?", name)
    if not parts:
        remedy = f"Choose {', '.join(PLAIN)} or dirichlet(α), for example dirichlet({ALPHA})."
        raise BadSettings(f"There is no stream order {name!r}.", remedy, settings=("stream",))
    if parts[1] is None:
        return ALPHA
    try:
        alpha = float(parts[1])
    except ValueError:
        alpha = math.nan
    if not 0 < alpha < math.inf:
        remedy = f"Choose a number above 0, for example dirichlet({ALPHA})."
        raise BadSettings(f"The α of {name!r} cannot be {parts[1]!r}.", remedy, settings=("stream",))
    return alpha
