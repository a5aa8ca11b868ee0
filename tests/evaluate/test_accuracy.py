"""Adapting helps: the accuracy bars on a short stream of small images. `make accuracy` checks them in full."""

from crodobo import load_benchmark, online
from crodobo.methods import get_method
from crodobo.nn.learners import make_learners

PIXELS, WARMUP, QUERIES = 16, 100, 25


def test_crodobo_learns_handwriting_that_source_only_does_not() -> None:
    """With the same warm starts and queries, CroDoBo ends far above training on the source only."""
    benchmark = load_benchmark("glyphs", image_size=PIXELS)
    late = {}
    states = None
    for name in ("crodobo", "source-only"):
        kind = get_method(name)
        settings = kind.Settings.of(learners=2, warmup=WARMUP)
        if states is None:
            method = kind(benchmark.source, augment=benchmark.augment, **dict(settings))
            states = [{key: value.clone() for key, value in learner.state().items()} for learner in method.learners]
        else:
            learners = make_learners(benchmark.source, 2, 0, settings)
            for learner, state in zip(learners, states, strict=True):
                learner.load_state(state)
            method = kind(benchmark.source, learners=learners, augment=benchmark.augment)
        rows = online(method, benchmark.stream(64, seed=0, queries=QUERIES)).rows
        late[name] = sum(row.correct for row in rows[-10:]) / 640
    assert late["crodobo"] > 0.75
    assert late["crodobo"] > late["source-only"] + 0.08
