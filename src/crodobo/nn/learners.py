"""Several learners: make them, let them learn the source, average their predictions."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from crodobo.config import LearnerSettings, Norm
from crodobo.core.prediction import Prediction, agreement_of
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.nn.learner import Learner
from crodobo.views.augment import Augment
from crodobo.views.chosen_views import ChosenViews
from crodobo.views.source_views import SourceViews


def make_learners(source: Source, count: int, seed: int, settings: LearnerSettings, first: int = 0) -> list[Learner]:
    """Make the learners `first` to `first + count - 1` of a run. The same seed and number give the same learner."""
    return [
        Learner(source.shape, len(source.classes), seed * 1009 + number, settings)
        for number in range(first, first + count)
    ]


def warm_up(
    learners: list[Learner],
    engine: Engine,
    source: Source,
    augment: Augment,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Let every learner learn the source before the stream begins, on its own bootstraps.

    If the target is to decide about the source views, the source is learned twice, first as it is. Both results are
    kept until the target has decided. `after_step` is called from the learners' threads after each step.
    """
    views = ChosenViews(learners[0].settings.source_views, source)

    def learn(learner: Learner) -> None:
        plain_start: dict[str, Tensor] = {}
        if views.open:
            begin = {name: value.clone() for name, value in learner.state().items()}
            learn_source(learner, source, augment, SourceViews(), after_step)
            plain_start = {name: value.clone() for name, value in learner.state().items()}
            learner.load_state(begin)
        learn_source(learner, source, augment, views.warm_up, after_step)
        learner.plain_start = plain_start

    engine.map(learn, learners)


def learn_source(
    learner: Learner, source: Source, augment: Augment, views: SourceViews, after_step: Callable[[], None]
) -> None:
    """Take the steps of a warm-up, with the source in these views."""
    for _ in range(learner.settings.warmup):
        batch = source.bootstrap(learner.settings.warmup_batch, learner.generator)
        weak = augment.weak(batch.images, learner.generator)
        logits = learner.forward(views.make(weak, augment, learner.generator))
        learner.update(F.cross_entropy(logits, batch.labels))
        after_step()


def average(learners: list[Learner], engine: Engine, images: Tensor, norm: Norm | None = None) -> Prediction:
    """Predict images in 0..1 with all learners: the mean of their probabilities."""
    each = torch.stack(engine.map(lambda learner: learner.answer(images, norm), learners))
    return Prediction(each.mean(dim=0), agreement_of(each))
