"""The paper's other tables and figures, and one of ours: which variants run, and how they are shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from crodobo.evaluate.comparison.plan import Entry
from crodobo.methods.objective import PRESETS

Layout = Literal["rows", "sweep", "grid"]


@dataclass(frozen=True)
class Study:
    """A table of variants.

    The layout `rows` has a row for each variant, `sweep` a column for each value of a setting, and `grid` a row for
    each method and a column for each stream.
    """

    name: str
    shows: str  # what the study shows, as part of a sentence
    entries: tuple[Entry, ...]
    layout: Layout = "rows"
    spread: bool = False  # of a grid: show mean and variance over the columns, as the paper does
    per_class: bool = False  # show a column for each class


OBJECTIVES = {
    "default": ("default", "default (w/o CroDoBo)"),
    "without-entropy": ("without-entropy", "w/o ℓ_ent"),
    "without-diversity": ("without-diversity", "w/o ℓ_div"),
    "pseudo-labels": ("pseudo-labels-for-entropy-diversity", "ℓ_ent + ℓ_div → pseudo-labels"),
    "mixmatch-for-entropy-diversity": ("mixmatch-for-entropy-diversity", "ℓ_ent + ℓ_div → MixMatch"),
    "mixmatch-for-co-supervision": ("mixmatch-for-co-supervision", "ℓ_t → MixMatch"),
    "randaugment": ("randaugment", "RandAugment on ℓ_ent, ℓ_div"),
}
LAMBDAS = (0.1, 0.4, 0.5, 0.8, 1.0)
TAUS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
ORDERS = ("random", "dirichlet(1)", "drift", "dirichlet(0.1)", "by-class")
BURST_METHODS = (
    *("no-adaptation", "source-only", "bn-statistics", "tent", "sar", "ent", "single", "crodobo"),
    "without-diversity",
)


def _sweep(setting: str, sign: str, values: Iterable[float]) -> tuple[Entry, ...]:
    return tuple(
        Entry(f"{value:g}" if value < 1 else f"{value:.1f}", f"{sign} = {value:g}", "crodobo", {setting: value})
        for value in values
    )


def _orders() -> tuple[Entry, ...]:
    entries = []
    for name in BURST_METHODS:
        method, options, label = name, {}, name
        if name == "without-diversity":
            method, options, label = "crodobo", {"objective": name}, "crodobo w/o ℓ_div"
        for order in ORDERS:
            key = f"{name}-{order.replace('(', '').replace(')', '')}"
            entries.append(Entry(key, f"{label}, {order}", method, options, {"stream": order}, label, order))
    return tuple(entries)


_ALL = (
    Study(
        "bootstrap",
        "the gain from cross-domain bootstrapping with the same objectives (Table 5)",
        (Entry("single", "w/o CroDoBo", "single"), Entry("crodobo", "w/ CroDoBo", "crodobo")),
    ),
    Study(
        "objectives",
        "the contribution of each term of the target objective, for one learner (Table 6)",
        tuple(Entry(key, label, "single", {"objective": preset}) for key, (preset, label) in OBJECTIVES.items()),
    ),
    Study(
        "continual",
        "CroDoBo without the source, against a method with a buffer of target samples (HR-Net table)",
        (
            Entry("conda", "ConDA", "conda"),
            Entry("continual", "Continual CroDoBo", "continual"),
            Entry("crodobo", "CroDoBo", "crodobo"),
        ),
        per_class=True,
    ),
    Study(
        "randomness",
        "the effect of the stream order: five random orders, mean and variance (Table 9)",
        tuple(
            Entry(f"{method}-order{order}", label, method, {}, {"stream_seed": order}, method, f"rand {order}")
            for method, label in (("cdan", "CDAN"), ("crodobo", "CroDoBo"))
            for order in range(5)
        ),
        layout="grid",
        spread=True,
    ),
    Study(
        "pseudo-labels",
        "MixMatch instead of co-supervision, for one or both learners (Table 8)",
        (
            Entry("mixmatch-fixmatch", "u: MixMatch, v: FixMatch", "crodobo", {"objective": "mixmatch-fixmatch"}),
            Entry("mixmatch", "u, v: MixMatch", "crodobo", {"objective": "mixmatch-for-co-supervision"}),
            Entry("crodobo", "CroDoBo", "crodobo"),
        ),
        per_class=True,
    ),
    Study("lambda", "sensitivity to λ, the weight of diversity (Table 10)", _sweep("lam", "λ", LAMBDAS), "sweep"),
    Study(
        "tau",
        "sensitivity to τ, the confidence threshold of pseudo-labels (Table 11)",
        _sweep("tau", "τ", TAUS),
        "sweep",
    ),
    Study("orders", "streams with classes in bursts, where entropy and diversity terms fail (ours)", _orders(), "grid"),
)
STUDIES = {study.name: study for study in _ALL}
assert all(preset in PRESETS for preset, _ in OBJECTIVES.values())
