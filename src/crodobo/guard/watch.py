"""Watch: decides for each query how it is normalised, what is learned from it, and whether to go back.

- **Statistics.** A query of usual classes is normalised with its own statistics while it is learned, as in the paper.
  One of few classes is corrected for them, and a short one leans on the running statistics of the target.
- **Learning.** Nothing is learned from a query of few samples or of a single class, from one that is unlike all earlier
  ones, or from a domain on which the learners, with the source's knowledge alone, do not agree: their labels would be
  noise. Such a query is predicted only. The source is learned meanwhile.
- **Going back.** A reference stays in memory: the learners as they were before the stream. Learners that see far fewer
  classes than the reference in the same samples, or agree far less, have been harmed. They get earlier weights.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.prediction import Adaptation, Estimate, Prediction, Reason
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.agreement import Agreement, worse
from crodobo.guard.estimate import Estimator
from crodobo.guard.guard import WeightCopy
from crodobo.guard.mixedness import FULL, Spread, UsualClasses
from crodobo.guard.reference import Look, Reference
from crodobo.nn.learner import Learner, average
from crodobo.nn.target_statistics import QueryNorm
from crodobo.storage.tensors import with_prefix

EXAMINED, COMPARED = 32, 16  # samples of a query that the reference looks at, and that the learners look at
NARROW = 0.25  # narrowness from which a query's statistics are corrected
ONE_CLASS = 0.9  # narrowness from which nothing is learned
FEW = 8  # samples from which a query is learned
LEAST_SOURCE = 16  # samples of the source that are learned at a time
OWN_TRUST = 32  # samples from which a query's own statistics get their full weight
FAR = 4.0  # distance, in bursts of a single class, from which a query is of another domain
NEW = 16  # samples of a new domain that count as much as all that came before
AGREE = 0.5  # agreement beyond chance from which a domain is learned
SETTLING = 256  # samples of a domain far from the source on which the learners must agree first
MOMENTUM, SLOWEST = 0.1, 0.25  # BatchNorm's usual momentum, and the least share of it with which bursts are followed
COPIES, EVERY = 2, 10  # copies of earlier weights, and learned queries between two of them
MEASURED = 512  # source samples that tell what classes do to the statistics
COUNTS = ("learned", "learned_here", "domain", "far", "owed")


class Lesson(NamedTuple):
    """What the learners may learn from a query."""

    weight: float = 1.0  # of the losses on the target, and of the step; 0 if only the source is learned
    usual: Tensor | None = None  # the usual predictions, if the query has too few classes to stand for the stream
    least_source: int = 1  # least size of the source batch beside the query
    reason: Reason | None = None  # why nothing is learned from the target


class View(NamedTuple):
    """What reference and learners found in a query."""

    norm: QueryNorm
    look: Look
    mine: list[Tensor]  # what the learners see in some samples
    far: bool  # whether it is of another domain than the stream so far
    new: bool  # whether the stream has changed its domain for good
    mixed: bool  # whether the reference sees the usual classes
    narrowness: float


class Watch:
    """Examines each query before it is learned.

    Parameters
    ----------
    learners
        The learners, after their warm-up.
    source
        The labelled public data.
    own
        Weight of a mixed query's own statistics at prediction.
    """

    def __init__(self, learners: list[Learner], source: Source, own: float) -> None:
        self.learners, self.source, self.own = learners, source, own
        self.prior = torch.bincount(source.labels, minlength=len(source.classes)) / len(source)
        indices = torch.randint(len(source), (MEASURED,), generator=torch.Generator().manual_seed(0))
        batches = [(pixels.to_unit(source.images[part]), source.labels[part]) for part in indices.split(128)]
        for learner in learners:
            learner.keep_target_statistics(self.prior, batches)
        self.reference = Reference(learners, self.prior)
        self.place = [mean.clone() for mean in self.reference.home]  # of the stream, in the reference's frame
        self.spread = Spread(sum(learner.network.width for learner in learners))
        self.seen_by_learners, self.seen_by_reference = UsualClasses(self.prior), UsualClasses(self.prior)
        self.mine, self.theirs = Agreement(self.prior), Agreement(self.prior)  # on the same mixed queries
        self.knowledge = Agreement(self.prior)  # without anything learned from this domain
        self.estimator = Estimator(self.prior)
        self.counts = {name: torch.zeros(1) for name in COUNTS}
        self.copies: tuple[WeightCopy, ...] = ()
        self.lesson, self._narrowness = Lesson(), 0.0

    def before(self, images: Tensor, engine: Engine) -> Adaptation:
        """Examine a query. Sets how the learners normalise it, and `lesson`; may put earlier weights back."""
        view = self._examine(images, engine)
        restored = None if view.far else self._compare(images, view, engine)
        self._follow(len(images), view)
        for learner in self.learners:
            learner.query_norm = view.norm
        self.lesson, self._narrowness = self._decide(len(images), view), view.narrowness
        return Adaptation(predicted_only=self.lesson.reason, restored=restored)

    def before_answer(self, images: Tensor, engine: Engine) -> None:
        """Estimate the classes of a narrow query again, with what was learned from it."""
        norm = self.learners[0].query_norm
        if norm.mix is None:
            return
        for learner, seen in zip(self.learners, self._ask(images, engine, self._narrowness), strict=True):
            learner.query_norm = norm._replace(mix=self.seen_by_learners.unbiased(seen).mean(dim=0))

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Count a query, keep a copy of the weights now and then, and estimate the accuracy."""
        if prediction.adaptation.predicted_only is None:
            self.counts["learned"] += 1
            self.counts["learned_here"] += 1
            learned = int(self.counts["learned"])
            if learned % EVERY == 0:
                self.copies = (*self.copies, WeightCopy(self.learners, learned))[-COPIES:]
        if prediction.adaptation.restored:
            self.estimator.clear()
        if prediction.adaptation.predicted_only != "unlike earlier queries":
            self.estimator.add(prediction)
        if self.estimator.enough and not self.estimator.calibrated:
            self.estimator.calibrate(self.reference.learners, self.source, engine)
        return replace(prediction, estimate=self.estimate)

    @property
    def estimate(self) -> Estimate | None:
        """The accuracy on the last samples that were taken; None where learners may make the same mistakes."""
        return None if self.remote or self.knowledge.kappa < AGREE else self.estimator.estimate()

    def predict(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict without learning. The reference answers if the learners are certainly worse on these images."""
        view = self._examine(images, engine)
        if view.mixed and len(images) >= EXAMINED:
            mine, theirs = Agreement(self.prior), Agreement(self.prior)
            mine.add(self._ask(some(images, EXAMINED), engine))
            theirs.add(view.look.probabilities)
            if worse(mine, theirs):
                return average(self.reference.learners, engine, images, norm="mixed")  # its accuracy is unknown
        for learner in self.learners:
            learner.query_norm = view.norm
        return replace(average(self.learners, engine, images), estimate=self.estimate)

    def source_due(self, samples: int, full: int) -> int:
        """The size of the source batch to learn with these samples, if nothing is learned from them; 0 for none.

        It is the number of samples since the last one, so that many short queries do not mean more learning.
        """
        self.counts["owed"] += samples
        owed = int(self.counts["owed"])
        if owed < LEAST_SOURCE:
            return 0
        self.counts["owed"].zero_()
        return min(full, owed)

    # Examining a query

    def _examine(self, images: Tensor, engine: Engine) -> View:
        count, first = len(images), not self.counts["domain"]
        look = self.reference.look(some(images, EXAMINED), engine)
        distance = self.reference.distance(look.place, self.reference.home if first else self.place)
        far = distance > FAR * (1 + 3 / len(look.features))  # few samples are always a little off
        new = far and (first or float(self.counts["far"]) >= NEW)
        mine = self._ask(some(images, COMPARED), engine)
        theirs = self.seen_by_reference.narrowness(mean(look.probabilities))
        narrowness, mix = self.seen_by_learners.narrowness(mean(mine)) if self.remote else theirs, None
        if narrowness > NARROW:
            mine = self._ask(images, engine, 0.0 if self.remote else theirs)
            ours = self.seen_by_learners.narrowness(mean(mine))
            narrowness = ours if self.remote else (ours + theirs) / 2
            if narrowness > NARROW:
                mix = self.seen_by_learners.unbiased(mean(mine)).mean(dim=0)
        norm = self._normalise(count, mix, narrowness, self.seen_by_learners.blindness(mean(mine)), far, new)
        return View(norm, look, mine, far, new, not self.remote and theirs <= NARROW, narrowness)

    def _normalise(
        self, count: int, mix: Tensor | None, narrowness: float, blind: float, far: bool, new: bool
    ) -> QueryNorm:
        """Which statistics a query gets."""
        if far:  # the running statistics are of another domain
            own = count / (count + NEW) if count > 1 else 0.0
            return QueryNorm(mix, own, own, own if new else 0.0)
        trust = min(1.0, (count - 1) / (OWN_TRUST - 1))
        if mix is not None:
            return QueryNorm(mix, self.own * trust * sharing(narrowness), trust, MOMENTUM * min(1.0, count / FULL))
        bursts = self.spread.bursts * blind  # what the predictions would have missed
        # At first the source counts as one query, unless a burst might have been missed.
        start = (1 - blind) * count / (float(self.counts["domain"]) + count + FULL)
        momentum = max(MOMENTUM * min(1.0, count / FULL), start) * max(SLOWEST, 1 - bursts)
        return QueryNorm(None, self.own * trust * (1 - bursts), trust, momentum)

    def _ask(self, images: Tensor, engine: Engine, narrowness: float = 0.0) -> list[Tensor]:
        """What the learners see in images whose class mix is not known, or only how narrow it is."""
        trust = min(1.0, (len(images) - 1) / (OWN_TRUST - 1))
        norm = QueryNorm(own=self.own * trust * sharing(narrowness))

        @torch.no_grad()
        def predict(learner: Learner) -> Tensor:
            assert learner.target
            with learner.target.predicting(norm, len(images)):
                return learner.network.encode(images).probabilities

        return engine.map(predict, self.learners)

    def _follow(self, count: int, view: View) -> None:
        """Let what is known of the stream follow a query."""
        self.counts["far"].copy_(self.counts["far"] + count if view.far else torch.zeros(1))
        if view.far and not view.new:
            return  # a stray query is not the stream
        if view.new:
            for each in (self.spread, self.seen_by_learners, self.seen_by_reference, self.estimator):
                each.clear()
            self.counts["domain"].zero_()
            self.counts["learned_here"].zero_()
        share = max(count / (float(self.counts["domain"]) + count + NEW), MOMENTUM * min(1.0, count / FULL))
        for place, here in zip(self.place, view.look.place, strict=True):
            place.lerp_(here, share)
        self.counts["domain"] += count
        self.seen_by_learners.add(mean(view.mine), count)
        self.seen_by_reference.add(mean(view.look.probabilities), count)
        if count >= FEW:  # the mean of fewer samples would say too much about each of them
            self.spread.add(view.look.features, count)

    def _decide(self, count: int, view: View) -> Lesson:
        """What may be learned from a query."""
        if count < FEW:
            return Lesson(0.0, reason="few samples")
        if view.far:
            return Lesson(0.0, reason="unlike earlier queries")
        settled = not self.remote or float(self.counts["domain"]) >= SETTLING
        if not settled or self.knowledge.kappa < AGREE:
            return Lesson(0.0, reason="learners disagree")
        if view.narrowness > ONE_CLASS:
            return Lesson(0.0, reason="few classes")
        if view.norm.mix is None:
            return Lesson(least_source=LEAST_SOURCE)
        return Lesson(1 - view.narrowness, self.seen_by_learners.usual.clone(), LEAST_SOURCE)

    @property
    def remote(self) -> bool:
        """Whether the stream is so far from the source that the reference, with its statistics, does not know it."""
        return self.reference.distance(self.place, self.reference.home) > FAR

    # Going back

    def _compare(self, images: Tensor, view: View, engine: Engine) -> str | None:
        """Compare the learners with the reference on the same samples. If they are worse, go back."""
        if self.remote:
            if not self.counts["learned_here"]:
                self.knowledge.add(view.mine)
            return None
        self.knowledge.add(view.look.probabilities)
        if not view.mixed:
            return None
        self.theirs.add(view.look.probabilities)
        self.mine.add(view.mine)
        reason = worse(self.mine, self.theirs)
        return self._go_back(images, reason, engine) if reason else None

    def _go_back(self, images: Tensor, reason: str, engine: Engine) -> str:
        """Put the newest earlier weights back that are not worse than the reference, or else its own."""
        for weights in (*self.copies[::-1], WeightCopy(self.reference.learners, 0)):
            weights.put_back(self.learners)
            mine = Agreement(self.prior)
            mine.add(self._ask(images, engine))
            if worse(mine, self.theirs) is None:
                break
        for learner in self.learners:
            learner.optimiser.state.clear()
        self.copies = tuple(each for each in self.copies if each.queries <= weights.queries)
        self.mine.clear()
        self.theirs.clear()
        ago = int(self.counts["learned"]) - weights.queries
        when = f"from {ago} learned queries ago" if weights.queries else "from before the stream"
        return f"the learners had been harmed ({reason}); the weights {when} were restored"

    # State

    def state(self) -> dict[str, Tensor]:
        """What is known of the stream, and the reference, without the copies of earlier weights."""
        parts = {
            "spread": self.spread.tensors(),
            "seen_by_learners": self.seen_by_learners.tensors(),
            "seen_by_reference": self.seen_by_reference.tensors(),
            "mine": self.mine.tensors(),
            "theirs": self.theirs.tensors(),
            "knowledge": self.knowledge.tensors(),
            "estimator": self.estimator.tensors(),
            "counts": self.counts,
            "place": {str(number): place for number, place in enumerate(self.place)},
            "reference": self.reference.state(),
        }
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        for name, value in self.state().items():
            if not name.startswith("reference."):
                value.copy_(state[name])
        self.reference.load_state(with_prefix("reference.", state))
        self.copies = ()

    def snapshot(self) -> tuple[WeightCopy, ...]:
        """The copies of earlier weights. Nothing changes a copy after it is made, so it is not copied again."""
        return self.copies

    def restore(self, snapshot: tuple[WeightCopy, ...]) -> None:
        """Go back to a result of `snapshot`."""
        self.copies = snapshot


def some(images: Tensor, most: int) -> Tensor:
    """At most so many of the images, evenly spaced."""
    return images[:: max(1, len(images) // most)][:most]


def mean(predictions: list[Tensor]) -> Tensor:
    """The mean of the learners' predictions."""
    return torch.stack(predictions).mean(dim=0)


def sharing(narrowness: float) -> float:
    """How far the own statistics of a narrow query may be used before they are corrected: not at all for one class."""
    return min(1.0, 2 - 2 * narrowness)
