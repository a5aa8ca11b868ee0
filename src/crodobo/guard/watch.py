"""Watch: decides for each query how it is normalised, what is learned from it, and whether to go back.

- **Statistics.** A query of usual classes is normalised with its own statistics while it is learned, as in the paper.
  One of few classes is corrected for them, and a short one leans on the running statistics of the target.
- **Learning.** Nothing is learned from a query of few samples or of a single class, from one that is unlike all earlier
  ones, or from a domain on which the learners, with the source's knowledge alone, do not agree: their labels would be
  noise. A pretrained backbone with a small learning rate learns such a domain all the same, because its features hardly
  move. Queries that are not learned are predicted only. The source is learned meanwhile.
- **Bursts that nobody sees.** Learners that know little take a burst for a mixed query. Until a stream has shown that
  it is mixed, and if the means of the queries' features show bursts that the predictions do not, it is predicted only.
- **Answers.** What a mix of classes could explain is left out of the statistics of a query that may be part of a missed
  burst. The reference shares the answers to such queries, and to queries of few classes, by up to a half. The
  prediction of the weak view, which learning makes anyway, is half of the answer to a mixed query. The answer to a
  query of few classes is fitted to those classes.
- **Going back.** A reference stays in memory: the learners as they were before the stream. Learners that see far fewer
  classes than the reference in the same samples, or agree far less, have been harmed. They get earlier weights. So do
  learners that have missed bursts.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Generator, Tensor

from crodobo.core.prediction import Adaptation, Estimate, Prediction
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.agreement import NOT_FINITE, Agreement, worse
from crodobo.guard.class_prior import fit_classes
from crodobo.guard.domain import Domain
from crodobo.guard.estimate import Estimator
from crodobo.guard.guard import WeightCopy
from crodobo.guard.lesson import Lesson, View, mean, some
from crodobo.guard.missed_bursts import MissedBursts
from crodobo.guard.mixedness import UsualClasses
from crodobo.guard.normalising import Found, choose_norm, sharing, trust
from crodobo.guard.protection import Protection
from crodobo.guard.reference import Look, Reference
from crodobo.guard.way_back import WayBack
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average
from crodobo.nn.target_statistics import QueryNorm
from crodobo.storage.tensors import with_prefix

EXAMINED = 64  # samples of a query that the reference looks at
NARROW, NOISE = 0.25, 0.8  # narrowness from which statistics are corrected, and its scatter for one sample
ONE_CLASS = 0.9  # narrowness from which nothing is learned
MIXED = 0.25  # weight of a query below which it has too few classes for more than one step
FEW, LEAST_SOURCE = 8, 16  # samples from which a query is learned, and samples of the source at a time
MISSED, UNDONE = 0.65, 0.95  # certainty of missed bursts from which nothing is learned, and earlier learning is undone
BURSTY = 0.5  # certainty of bursts from which the accuracy is unknown
KNOWN = 256  # samples that tell whether the learners know a domain
AGREE = 1 / 3  # agreement beyond chance from which a domain is learned
CALM = 10  # queries without a burst after which the source's classes are measured only now and then
MEASURED = 512  # source samples that tell what classes do to the statistics
COUNTS = ("owed", "calm")
ShowSource = Callable[[Tensor, Generator], Tensor]


class Watch(Protection):
    """Examines each query before it is learned.

    `show` makes the views in which the source is learned. `own` is the weight of a mixed query's own statistics at
    prediction.
    """

    follows = True

    def __init__(self, learners: list[Learner], source: Source, show: ShowSource, own: float) -> None:
        super().__init__(learners)
        self.source, self.own = source, own
        self.prior = torch.bincount(source.labels, minlength=len(source.classes)) / len(source)
        generator = Generator().manual_seed(0)
        batches = [source.bootstrap(128, generator) for _ in range(MEASURED // 128)]
        views = [(show(batch.images, generator), batch.labels) for batch in batches]
        for learner in learners:
            learner.keep_target_statistics(self.prior, views)
        self.reference = Reference(learners, self.prior)
        self.domain = Domain(self.reference)
        self.bursts = MissedBursts(sum(learner.network.width for learner in learners))
        self.seen_by_learners, self.seen_by_reference = UsualClasses(self.prior), UsualClasses(self.prior)
        self.way_back = WayBack(learners, self.reference, self.prior)
        self.knowledge = Agreement(self.prior, KNOWN)  # without anything learned from this domain
        self.estimator = Estimator(self.prior)
        self.counts = {name: torch.zeros(1) for name in COUNTS}
        self.counts["calm"].fill_(CALM)
        self._view: View | None = None  # what was found in the query, until its end
        self._weak: Tensor | None = None  # predictions of its weak view, made while it was learned

    def scale(self, samples: int, learned: int, largest: int, full: int) -> None:
        """Scale the step by the samples that may be learned."""
        for learner in self.learners:
            learner.step_size = min(1.0, learned / full)

    def before(self, images: Tensor, engine: Engine, learned: int) -> Adaptation:
        """Examine a query with `learned` samples to learn from. Sets how it is normalised, and `lesson`."""
        look = self.reference.look(some(images, EXAMINED), engine)
        self.bursts.blindness.fill_(self._blindness(look))
        restored = self._test_spread(look)
        view = self._view = self._examine(images, look, engine, learned)
        self._follow(len(images), view)
        self.lesson = self._decide(learned, view)
        self.one_step, self.answered = self.lesson.weight < MIXED, False
        for learner in self.learners:
            learner.query_norm = view.norm
            learner.step_size *= self.lesson.weight
        return Adaptation(predicted_only=self.lesson.reason, restored=restored)

    def before_answer(self, images: Tensor, engine: Engine) -> None:
        """Estimate the classes of a narrow query again, with what was learned from it."""
        if self._view is None or self._view.norm.mix is None:
            return
        for learner, seen in zip(self.learners, self._ask(images, engine, self._view.narrowness), strict=True):
            learner.query_norm = self._view.norm._replace(mix=self.seen_by_learners.unbiased(seen).mean(dim=0))

    def note_weak(self, predictions: list[Tensor]) -> None:
        """Take the learners' predictions of the weak view. They are part of the answer to a mixed query.

        If they are worse than the reference's, no more steps are taken.
        """
        weak, view = mean(predictions), self._view
        if view is None:
            return
        later = self.answered and self._weak is not None  # made with what this query has taught
        if view.norm.plain and self.lesson.weight == 1 and weak.isfinite().all() and not later:
            self._weak = weak
        if view.mixed:
            mine, theirs = Agreement(self.prior), Agreement(self.prior)
            mine.add(predictions)
            theirs.add(view.look.probabilities)
            self.one_step |= worse(mine, theirs) is not None

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Count a query, compare the learners with the reference, and estimate the accuracy.

        If the learners are worse, they go back, and the query is predicted again.
        """
        if prediction.adaptation.predicted_only is None:
            self.way_back.count_learned()
        prediction, weak = self._checked(images, prediction, engine), self._weak
        if prediction.adaptation.restored:
            self.estimator.clear()
            weak = None
        elif prediction.adaptation.predicted_only is None:
            self.way_back.copy_if_due()
        if self._view and not self._view.far:
            self.estimator.add(prediction)
        if self.estimator.enough and not self.estimator.calibrated:
            self.estimator.calibrate(self.reference.learners, self.source, engine)
        prediction = self._shared(images, prediction, self._view, engine)
        if weak is not None and len(weak) == len(images):
            prediction = replace(prediction, probabilities=(prediction.probabilities + weak) / 2)
        return replace(self._fitted(prediction, self._view), estimate=self.estimate)

    def after_more_steps(self, images: Tensor, engine: Engine) -> str | None:
        """Compare the learners with the reference again, after steps on a query that was answered.

        Says what was restored, if they are worse.
        """
        return self._checked(images, average(self.learners, engine, images), engine).adaptation.restored

    def end_query(self) -> None:
        """Forget what was found in a query."""
        self._view = self._weak = None

    @property
    def estimate(self) -> Estimate | None:
        """The accuracy on the last samples that were taken; None where learners may make the same mistakes."""
        narrow = self.bursts.spread.bursts > BURSTY or float(self.counts["calm"]) < CALM
        unknown = self.domain.remote or self.knowledge.kappa < AGREE or narrow
        return None if unknown or self.gentle else self.estimator.estimate()  # see docs/streams.md, How good is it?

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
        return replace(self._fitted(prediction, view), estimate=self.estimate)

    def predict_each(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict images without learning, each as if it were the only one: with the running statistics alone."""
        missed = self.bursts.certainty(float(self.bursts.blindness), self._near_samples)
        for learner in self.learners:
            learner.query_norm = QueryNorm(own=0.0)
        return self._shared_by(missed, images, average(self.learners, engine, images), engine)

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

    def _looks_mixed(self, look: Look) -> bool:
        """Whether the reference sees the usual classes."""
        narrowness = self.seen_by_reference.narrowness(mean(look.probabilities))
        return narrowness <= NARROW + NOISE / math.sqrt(len(look.features))

    def _test_spread(self, look: Look) -> str | None:
        """Test whether a query is a random part of the stream. Says what was undone if bursts turn out to be missed."""
        if len(look.features) < FEW or self.domain.is_far(look):
            return None  # the mean of fewer samples would say too much about each of them
        self.bursts.spread.add(look.features, seen=not self._looks_mixed(look))
        found = self.bursts.certainty(self._blindness(look), None)
        return self._undo() if found > UNDONE and self.way_back.unproven else None

    def _examine(self, images: Tensor, look: Look, engine: Engine, learned: int = 0) -> View:
        far = self.domain.is_far(look)
        new = self.domain.changes(far)
        theirs = self.seen_by_reference.narrowness(mean(look.probabilities))
        mixed = not self.domain.remote and self._looks_mixed(look)
        narrowness, mix, mine = 0.0, None, None
        if not mixed:
            mine = mean(self._ask(images, engine, 0.0 if self.domain.remote else theirs))
            narrowness = self.seen_by_learners.narrowness(mine)
            narrowness = narrowness if self.domain.remote else (narrowness + theirs) / 2
            if narrowness > NARROW:
                mix = self.seen_by_learners.unbiased(mine).mean(dim=0)
        missed = self._missed(look)
        found = Found(len(images), learned, mix, narrowness, far, new, missed)
        norm = choose_norm(found, self.own, self.domain, float(self.bursts.blindness))
        return View(norm, look, mine, far, new, mixed, narrowness, missed)

    def _ask(self, images: Tensor, engine: Engine, narrowness: float = 0.0) -> list[Tensor]:
        """What the learners see in images whose class mix is not known, or only how narrow it is."""
        norm = QueryNorm(own=self.own * trust(len(images)) * sharing(narrowness))

        @torch.no_grad()
        def predict(learner: Learner) -> Tensor:
            assert learner.target
            with learner.target.predicting(norm, len(images)):
                return learner.network.encode(images).probabilities

        return engine.map(predict, self.learners)

    def _follow(self, count: int, view: View) -> None:
        """Let what is known of the stream follow a query."""
        if view.far and not view.new:
            self.domain.skip(count)
            return
        if view.new:
            for each in (self.bursts, self.seen_by_learners, self.seen_by_reference, self.knowledge, self.estimator):
                each.clear()
        self.domain.follow(count, view.look, view.new)
        self.counts["calm"].copy_(self.counts["calm"] + 1 if view.norm.mix is None else torch.zeros(1))
        self.seen_by_reference.add(mean(view.look.probabilities), count)
        if not self.domain.remote:
            self.knowledge.add(view.look.probabilities)

    def _decide(self, count: int, view: View) -> Lesson:
        """What may be learned from a query."""
        if count < FEW:
            return Lesson(0.0, reason="few samples")
        if view.far:
            return Lesson(0.0, reason="unlike earlier queries")
        if not self.gentle and (self.domain.remote or self.knowledge.kappa < AGREE):
            return Lesson(0.0, reason="learners disagree")
        if view.narrowness > ONE_CLASS:
            return Lesson(0.0, reason="few classes")
        if view.missed > MISSED:
            return Lesson(0.0, reason="may be a burst")
        if view.norm.mix is None:
            return Lesson(least_source=LEAST_SOURCE)
        return Lesson(1 - view.narrowness, self.seen_by_learners.usual.clone(), LEAST_SOURCE)

    def _missed(self, look: Look) -> float:
        """How certain it is that a query is part of a burst which the learners, unsure as they are, do not see."""
        return self.bursts.certainty(self._blindness(look), self._near_samples)

    @property
    def _near_samples(self) -> int | None:
        """How many samples have come of a domain near the source; None if it is far away."""
        return None if self.domain.remote else int(self.domain.samples)

    def _blindness(self, look: Look) -> float:
        """How likely the learners are to miss a burst. Before the stream they know as much as the reference."""
        if self.domain.samples:
            return float(self.bursts.blindness)
        return self.seen_by_reference.blindness(mean(look.probabilities))

    @property
    def gentle(self) -> bool:
        """Whether the learners' features hardly move, so that wrong labels do little harm."""
        return all(learner.gentle for learner in self.learners)

    # Going back

    def _checked(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Compare the learners with the reference on a mixed query. If they are worse, go back and predict again."""
        view, reason = self._view, None
        if not prediction.probabilities.isfinite().all():
            reason = NOT_FINITE
        elif view and not view.far:
            self.seen_by_learners.add(prediction.probabilities if view.mine is None else view.mine, len(images))
            self.bursts.blindness.fill_(self.seen_by_learners.blindness(prediction.probabilities))
            if view.mixed and view.missed <= MISSED:
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
        self.bursts.blindness.fill_(self.seen_by_learners.blindness(prediction.probabilities))
        return prediction

    def _shared(self, images: Tensor, prediction: Prediction, view: View | None, engine: Engine) -> Prediction:
        """Let the reference answer in proportion to the doubt whether the learners saw the classes of a query."""
        if view is None or view.far:
            return prediction
        return self._shared_by(view.missed if view.norm.mix is None else view.narrowness, images, prediction, engine)

    def _shared_by(self, doubt: float, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        if self.domain.remote:
            return prediction
        share = max(doubt, self.bursts.certainty(float(self.bursts.blindness), None)) / 2
        if not share:
            return prediction
        theirs = average(self.reference.learners, engine, images, norm="running").probabilities
        return replace(prediction, probabilities=torch.lerp(prediction.probabilities, theirs, share))

    def _fitted(self, prediction: Prediction, view: View | None) -> Prediction:
        """Fit the answer to a query of few classes to those that it seems to have."""
        if view is None or view.far or view.norm.mix is None or not prediction.probabilities.isfinite().all():
            return prediction
        return replace(prediction, probabilities=fit_classes(prediction.probabilities, self.prior))

    def _undo(self) -> str:
        """Forget what was learned while bursts were taken for mixed queries, and the statistics that they left."""
        when = self.way_back.to_old_weights()
        for learner in self.learners:
            if learner.target and not self.domain.remote:
                learner.target.begin()
                learner.keep_statistics()
        return f"the stream comes in bursts that the learners had missed; the weights {when} were restored"

    # State

    def state(self) -> dict[str, Tensor]:
        """What is known of the stream, and the reference, without the copies of earlier weights."""
        parts = {
            "domain": self.domain.tensors(),
            "bursts": self.bursts.tensors(),
            "seen_by_learners": self.seen_by_learners.tensors(),
            "seen_by_reference": self.seen_by_reference.tensors(),
            "way_back": self.way_back.tensors(),
            "knowledge": self.knowledge.tensors(),
            "estimator": self.estimator.tensors(),
            "counts": self.counts,
            "reference": self.reference.state(),
        }
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        for name, value in self.state().items():
            if not name.startswith("reference."):
                value.copy_(state[name])
        self.reference.load_state(with_prefix("reference.", state))
        self.way_back.continue_from_checkpoint()
        self.end_query()

    def snapshot(self) -> tuple[WeightCopy, ...]:
        """The copies of earlier weights, which nothing changes after they are made."""
        return self.way_back.copies

    def restore(self, snapshot: tuple[WeightCopy, ...]) -> None:
        """Go back to a result of `snapshot`."""
        self.way_back.copies = snapshot
        self.end_query()
