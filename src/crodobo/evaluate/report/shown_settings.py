"""Settings for people: what was in effect, also where nothing was chosen."""

from typing import Any

from crodobo.evaluate.outcome import Outcome
from crodobo.methods import Method

# What a setting that is not set means, where nothing more exact is known.
UNSET = {
    "queries": "all",
    "image_size": "the benchmark's",
    "stream_seed": "the seed",
    "prove_every": "only at the start",
    "source_limit": "all images",
    "views": "the preset's",
    "backbone_lr_scale": "chosen by the backbone",
    "threads": "the cores, shared by the learners",
}


def settings_in_effect(outcome: Outcome, method: Method) -> dict[str, Any]:
    """The settings of a run, with the values that it used for those that are not set."""
    settings = outcome.settings
    stored = settings.model_dump(mode="json")
    data, options = stored.pop("data"), stored.pop("options")
    used: dict[str, Any] = {
        "queries": outcome.record.queries,
        "image_size": outcome.benchmark.source.shape[-1],
        "stream_seed": settings.order_seed,
        "backbone_lr_scale": method.learners[0].backbone_lr_scale,
        "threads": method.engine.threads,
    }
    if settings.options.burn != "strict":
        used["prove_every"] = "never, only strict burning does"
    shown = in_words(stored | options | (data or {}))
    return shown | {name: value for name, value in used.items() if (stored | options).get(name) is None}


def in_words(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with words instead of None, True and False.

    >>> in_words({"queries": None, "weights": None, "guard": True, "seed": 0})
    {'queries': 'all', 'weights': 'none', 'guard': 'yes', 'seed': 0}
    """
    words = {True: "yes", False: "no"}
    return {
        name: UNSET.get(name, "none") if value is None else words[value] if isinstance(value, bool) else value
        for name, value in settings.items()
    }
