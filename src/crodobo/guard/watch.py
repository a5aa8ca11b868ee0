"""Watch: decides for each query how it is normalised, what is learned from it, and whether to go back.

- **Statistics.** A query of usual classes is normalised with its own statistics while it is learned, as in the paper.
  One of few classes is corrected for them, and a short one leans on the running statistics of the target.
- **Learning.** Nothing is learned from a query of few samples or of a single class, from one that is unlike all earlier
  ones, or from a domain on which the learners, with the source's knowledge alone, do not agree: their labels would be
  noise. A pretrained backbone with a small learning rate learns such a domain all the same, because its features hardly
  move. Queries that are not learned are predicted only. The source is learned meanwhile.
- **Bursts that nobody sees.** Learners that know little take a burst for a mixed query. If the means of the queries'
  features show bursts that the predictions do not, the stream is predicted only, and the reference shares the answers.
- **Going back.** A reference stays in memory: the learners as they were before the stream. Learners that see far fewer
  classes than the reference in the same samples, or agree far less, have been harmed. They get earlier weights. So do
  learners that have missed bursts.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.prediction import Adaptation, Estimate, Prediction
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.agreement import NOT_FINITE, Agreement, worse
from crodobo.guard.estimate import Estimator
from crodobo.guard.guard import WeightCopy
from crodobo.guard.lesson import Lesson, View, mean, sharing, some
from crodobo.guard.mixedness import FULL, Spread, UsualClasses
from crodobo.guard.reference import Look, Reference
from crodobo.guard.way_back import WayBack
from crodobo.nn.learner import Learner, average
from crodobo.nn.target_statistics import QueryNorm
from crodobo.storage.tensors import with_prefix

EXAMINED = 64  # samples of a query that the reference looks at
NARROW, NOISE = 0.25, 0.8  # narrowness from which statistics are corrected, and its scatter for one sample
ONE_CLASS = 0.9  # narrowness from which nothing is learned
FEW, LEAST_SOURCE = 8, 16  # samples from which a query is learned, and samples of the source at a time
OWN_TRUST = 32  # samples from which a query's own statistics get their full weight
FAR = 4.0  # distance, in bursts of a single class, from which a query is of another domain
NEW = 16  # samples of a new domain that count as much as all that came before
SURE, UNSURE = 0.2, 0.5  # blindness up to which learners see bursts, and from which they do not
MISSED, UNDONE = 0.65, 0.95  # certainty of missed bursts from which nothing is learned, and earlier learning is undone
GENTLE = 0.1  # scale of the backbone's learning rate up to which a domain is learned that the learners do not know
BURSTY = 0.5  # certainty of bursts from which the accuracy is unknown
KNOWN = 256  # samples that tell whether the learners know a domain
AGREE = 0.5  # agreement beyond chance from which a domain is learned
MOMENTUM, SLOWEST = 0.1, 0.25  # BatchNorm's usual momentum, and the least share of it with which bursts are followed
CALM = 10  # queries without a burst after which the source's classes are measured only now and then
MEASURED = 512  # source samples that tell what classes do to the statistics
COUNTS = ("domain", "far", "owed", "calm", "blind")


class Watch:
    """Examines each query before it is learned. `own` is the weight of a mixed query's own statistics at prediction."""

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
        self.way_back = WayBack(learners, self.reference, self.prior)
        self.knowledge = Agreement(self.prior, KNOWN)  # without anything learned from this domain
        self.estimator = Estimator(self.prior)
        self.counts = {name: torch.zeros(1) for name in COUNTS}
        self.counts["calm"].fill_(CALM)
        self.counts["blind"].fill_(0.5)
        self.lesson = Lesson()
        self._view: View | None = None

    def before(self, images: Tensor, engine: Engine) -> Adaptation:
        """Examine a query. Sets how the learners normalise it, and `lesson`."""
        look = self.reference.look(some(images, EXAMINED), engine)
        restored = self._test_spread(look)
        view = self._view = self._examine(images, look, engine)
        self._follow(len(images), view)
        for learner in self.learners:
            learner.query_norm = view.norm
        self.lesson = self._decide(len(images), view)
        return Adaptation(predicted_only=self.lesson.reason, restored=restored)

    def before_answer(self, images: Tensor, engine: Engine) -> None:
        """Estimate the classes of a narrow query again, with what was learned from it."""
        if self._view is None or self._view.norm.mix is None:
            return
        for learner, seen in zip(self.learners, self._ask(images, engine, self._view.narrowness), strict=True):
            learner.query_norm = self._view.norm._replace(mix=self.seen_by_learners.unbiased(seen).mean(dim=0))

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Count a query, compare the learners with the reference, and estimate the accuracy.

        If the learners are worse, they go back, and the query is predicted again.
        """
        if prediction.adaptation.predicted_only is None:
            self.way_back.count_learned()
        prediction = self._shared(images, self._checked(images, prediction, engine), self._view, engine)
        self._view = None
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
        unknown = self.remote or self.knowledge.kappa < AGREE or self.spread.bursts > BURSTY
        return None if unknown else self.estimator.estimate()

    def predict(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict without learning. The reference answers if the learners are certainly worse on these images."""
        look = self.reference.look(some(images, EXAMINED), engine)
        view = self._examine(images, look, engine)
        if view.mixed and len(images) >= EXAMINED:
            mine, theirs = Agreement(self.prior), Agreement(self.prior)
            mine.add(self._ask(some(images, EXAMINED), engine))
            theirs.add(view.look.probabilities)
            if worse(mine, theirs):
                return average(self.reference.learners, engine, images, norm="mixed")  # its accuracy is unknown
        for learner in self.learners:
            learner.query_norm = view.norm
        prediction = self._shared(images, average(self.learners, engine, images), view, engine)
        return replace(prediction, estimate=self.estimate)

    def source_due(self, samples: int, full: int) -> int:
        """The size of the source batch to learn with these samples, if nothing is learned from them; 0 for none.

        It is the number of samples since the last one, so that many short queries do not mean more learning.
        """
        self.counts["owed"] += samples
        if (owed := int(self.counts["owed"])) < LEAST_SOURCE:
            return 0
        self.counts["owed"].zero_()
        return min(full, owed)

    def measures_classes(self, step: int) -> bool:
        """Whether to measure what the source's classes do to the statistics: in bursts always, else now and then."""
        return float(self.counts["calm"]) < CALM or step % CALM == 0

    # Examining a query

    def _is_far(self, look: Look) -> bool:
        """Whether samples are of another domain than the stream so far."""
        first = not self.counts["domain"]
        distance = self.reference.distance(look.place, self.reference.home if first else self.place)
        return distance > FAR * (1 + 3 / len(look.features))  # few samples are always a little off

    def _looks_mixed(self, look: Look) -> bool:
        """Whether the reference sees the usual classes."""
        narrowness = self.seen_by_reference.narrowness(mean(look.probabilities))
        return narrowness <= NARROW + NOISE / math.sqrt(len(look.features))

    def _test_spread(self, look: Look) -> str | None:
        """Test whether a query is a random part of the stream. Says what was undone if bursts turn out to be missed."""
        if len(look.features) < FEW or self._is_far(look):
            return None  # the mean of fewer samples would say too much about each of them
        self.spread.add(look.features, seen=not self._looks_mixed(look))
        return self._undo() if self.missed > UNDONE and self.way_back.unproven else None

    def _examine(self, images: Tensor, look: Look, engine: Engine) -> View:
        count, first, far = len(images), not self.counts["domain"], self._is_far(look)
        new = far and (first or float(self.counts["far"]) >= NEW)
        theirs = self.seen_by_reference.narrowness(mean(look.probabilities))
        mixed = not self.remote and self._looks_mixed(look)
        narrowness, mix, mine = 0.0, None, None
        if not mixed:
            mine = mean(self._ask(images, engine, 0.0 if self.remote else theirs))
            narrowness = self.seen_by_learners.narrowness(mine)
            narrowness = narrowness if self.remote else (narrowness + theirs) / 2
            if narrowness > NARROW:
                mix = self.seen_by_learners.unbiased(mine).mean(dim=0)
        norm = self._normalise(count, mix, narrowness, far, new)
        return View(norm, look, mine, far, new, mixed, narrowness)

    def _normalise(self, count: int, mix: Tensor | None, narrowness: float, far: bool, new: bool) -> QueryNorm:
        """Which statistics a query gets."""
        if far:  # the running statistics are of another domain
            own = count / (count + NEW) if count > 1 else 0.0
            return QueryNorm(mix, own, own, own if new else 0.0)
        trust = min(1.0, (count - 1) / (OWN_TRUST - 1))
        if mix is not None:
            return QueryNorm(mix, self.own * trust * sharing(narrowness), trust, MOMENTUM * min(1.0, count / FULL))
        blind, missed = float(self.counts["blind"]), self.missed
        # At first the source counts as one query; as more if it is near and a burst might have been missed.
        trusted = 1.0 if self.remote else (1 - blind) * (1 - missed)
        start = trusted * count / (float(self.counts["domain"]) + count + FULL)
        momentum = max(MOMENTUM * min(1.0, count / FULL), start) * max(SLOWEST, 1 - missed)
        return QueryNorm(None, self.own * trust * (1 - missed), trust, momentum)

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
            for each in (self.spread, self.seen_by_learners, self.seen_by_reference, self.knowledge, self.estimator):
                each.clear()
            self.counts["domain"].zero_()
        share = max(count / (float(self.counts["domain"]) + count + NEW), MOMENTUM * min(1.0, count / FULL))
        for place, here in zip(self.place, view.look.place, strict=True):
            place.lerp_(here, share)
        self.counts["domain"] += count
        self.counts["calm"].copy_(self.counts["calm"] + 1 if view.norm.mix is None else torch.zeros(1))
        self.seen_by_reference.add(mean(view.look.probabilities), count)
        if not self.remote:
            self.knowledge.add(view.look.probabilities)

    def _decide(self, count: int, view: View) -> Lesson:
        """What may be learned from a query."""
        if count < FEW:
            return Lesson(0.0, reason="few samples")
        if view.far:
            return Lesson(0.0, reason="unlike earlier queries")
        if not self.gentle and (self.remote or self.knowledge.kappa < AGREE):
            return Lesson(0.0, reason="learners disagree")
        if view.narrowness > ONE_CLASS or self.missed > MISSED:
            return Lesson(0.0, reason="few classes")
        if view.norm.mix is None:
            return Lesson(least_source=LEAST_SOURCE)
        return Lesson(1 - view.narrowness, self.seen_by_learners.usual.clone(), LEAST_SOURCE)

    @property
    def missed(self) -> float:
        """How certain it is that the stream comes in bursts which the learners, unsure as they are, do not see."""
        return self.spread.unseen * min(1.0, max(0.0, (float(self.counts["blind"]) - SURE) / (UNSURE - SURE)))

    @property
    def gentle(self) -> bool:
        """Whether the learners' features hardly move, so that wrong labels do little harm."""
        return all(learner.backbone_lr_scale <= GENTLE for learner in self.learners)

    @property
    def remote(self) -> bool:
        """Whether the stream is so far from the source that the reference, with its statistics, does not know it."""
        return self.reference.distance(self.place, self.reference.home) > FAR

    # Going back

    def _checked(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Compare the learners with the reference on a mixed query. If they are worse, go back and predict again."""
        view, reason = self._view, None
        if not prediction.probabilities.isfinite().all():
            reason = NOT_FINITE
        elif view and not view.far:
            self.seen_by_learners.add(prediction.probabilities if view.mine is None else view.mine, len(images))
            self.counts["blind"].fill_(self.seen_by_learners.blindness(prediction.probabilities))
            if view.mixed and self.missed <= MISSED:
                same = some(prediction.probabilities, EXAMINED)
                reason = self.way_back.compare(same, prediction.agreement, view.look.probabilities)
        if reason is None:
            return prediction
        when = self.way_back.to_good_weights(lambda: self._ask(images, engine))
        for learner in self.learners:
            learner.query_norm = learner.query_norm._replace(mix=None)  # the harmed learners' guess
        restored = f"the learners had been harmed ({reason}); the weights {when} were restored"
        told = replace(prediction.adaptation, restored=restored)
        prediction = replace(average(self.learners, engine, images), adaptation=told)
        self.counts["blind"].fill_(self.seen_by_learners.blindness(prediction.probabilities))
        return prediction

    def _shared(self, images: Tensor, prediction: Prediction, view: View | None, engine: Engine) -> Prediction:
        """Let the reference answer in proportion to the doubt whether the learners saw the classes of a query."""
        if view is None or view.far or self.remote or view.norm.mix is not None or not self.missed:
            return prediction
        theirs = view.look.probabilities
        if len(images) > EXAMINED:
            theirs = [average(self.reference.learners, engine, images, norm="running").probabilities]
        shared = torch.lerp(prediction.probabilities, mean(theirs), self.missed)
        return replace(prediction, probabilities=shared)

    def _undo(self) -> str:
        """Forget what was learned while bursts were taken for mixed queries, and the statistics that they left."""
        when = self.way_back.to_old_weights()
        for learner in self.learners:
            if learner.target and not self.remote:
                learner.target.begin()
                learner.keep_statistics()
        return f"the stream comes in bursts that the learners had missed; the weights {when} were restored"

    # State

    def state(self) -> dict[str, Tensor]:
        """What is known of the stream, and the reference, without the copies of earlier weights."""
        parts = {
            "spread": self.spread.tensors(),
            "seen_by_learners": self.seen_by_learners.tensors(),
            "seen_by_reference": self.seen_by_reference.tensors(),
            "way_back": self.way_back.tensors(),
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
        self.way_back.copies, self._view = (), None

    def snapshot(self) -> tuple[WeightCopy, ...]:
        """The copies of earlier weights, which nothing changes after they are made."""
        return self.way_back.copies

    def restore(self, snapshot: tuple[WeightCopy, ...]) -> None:
        """Go back to a result of `snapshot`."""
        self.way_back.copies, self._view = snapshot, None
