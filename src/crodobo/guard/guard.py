"""Guard: does not learn bursts of few classes, and gives collapsed learners their last good weights back.

A burst and a collapse look alike: the query seems to hold far fewer classes than usual. The last good weights tell them
apart. If they also see few classes, it is a burst: the query is predicted but not learned. If they see many, the
learners have collapsed. Learners that no longer agree, or no longer know the public source, have also collapsed.

The guard learns what is usual from one sample in eight, so that it costs little. During the first 1024 samples it
restores weights only if they are no longer finite or no longer know the source.
"""

import math
from dataclasses import replace

import torch
from torch import Generator, Tensor

from crodobo.config import Norm
from crodobo.core import pixels
from crodobo.core.prediction import Adaptation, Prediction
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.class_mix import ClassMix, narrower
from crodobo.guard.protection import Protection
from crodobo.nn.learner import Learner
from crodobo.nn.learners import average

ONE_IN = 8  # one sample in so many is examined before a query is learned
GLANCED = 8  # examined samples that can raise a suspicion
RECENT = 64  # samples that decide about a suspicion
TRUST = 1024  # samples of the stream until the usual mix is known
HORIZON = 1600  # examined samples that make up the usual mix
PROBED = 32  # source samples that the learners are tested on from time to time
EVERY = 512  # samples of the stream between two tests, and between two copies of good weights
SURE = 4.0  # standard deviations from which a suspicion is not chance
SLOW, FAST = 0.02, 0.2  # how far 64 samples move the usual and the recent agreement


class WeightCopy:
    """A copy of the learners' weights and statistics after a number of queries, in memory only.

    `stored` says that they are those of a checkpoint.
    """

    def __init__(self, learners: list[Learner], queries: int, stored: bool = False) -> None:
        self.queries, self.stored = queries, stored
        self._copies = [{name: value.clone() for name, value in weights_of(learner).items()} for learner in learners]

    @torch.no_grad()
    def put_back(self, learners: list[Learner]) -> None:
        """Copy the weights back into the learners."""
        for learner, copies in zip(learners, self._copies, strict=True):
            for name, value in weights_of(learner).items():
                value.copy_(copies[name])
            learner.keep_statistics()


GuardSnapshot = tuple[WeightCopy | None, WeightCopy | None, bool]  # what `Guard.state` leaves out


class Guard(Protection):
    """Watches the learners of a method from query to query, and may put earlier weights back into them.

    It keeps four class mixes: `usual` of the whole stream, `glance` of the few samples looked at before a query is
    learned, `close` of a suspicious query's samples, and `answers` of the predictions after learning.
    """

    def __init__(self, learners: list[Learner], source: Source) -> None:
        super().__init__(learners)
        self.source = source
        classes = len(source.classes)
        frequencies = torch.bincount(source.labels, minlength=classes) / len(source)
        self.chance = float(frequencies.square().sum())  # accuracy of random guesses
        self.usual, self.glance = ClassMix(classes, HORIZON), ClassMix(classes, GLANCED)
        self.close, self.answers = ClassMix(classes, RECENT), ClassMix(classes, RECENT)
        self.agreement = torch.zeros(2, dtype=torch.float64)  # recent and usual; 0 with one learner
        self.counts = torch.zeros(2, dtype=torch.int64)  # samples and queries so far
        self.known = torch.zeros(1, dtype=torch.float64)  # the best accuracy on the probe so far
        self.probe = torch.randint(len(source), (PROBED,), generator=Generator().manual_seed(0))
        self.good: WeightCopy | None = None
        self.next: WeightCopy | None = None  # becomes the good copy if the queries after it are sound
        self.sound = False  # whether the current weights were checked and found not to have collapsed

    def before(self, images: Tensor, engine: Engine, learned: int) -> Adaptation:
        """Examine a query before it is learned: is it a burst, or have the learners collapsed?"""
        if self.good is None:
            self.good = self.next = WeightCopy(self.learners, int(self.counts[1]))
        examined = images[-int(self.counts[0]) % ONE_IN :: ONE_IN]
        seen = self._glance(examined, engine, "running")
        finite = bool(seen.isfinite().all())
        if finite:
            self.glance.add(seen)
            self.usual.add(seen)
            on_alert = narrower(self.close, self.usual)  # eight samples must not end a burst by chance
            if self.counts[0] < TRUST or not (on_alert or narrower(self.glance, self.usual)):
                self.close.clear()
                return Adaptation()
            self.close.add(self._look(images, engine).probabilities)
            if not narrower(self.close, self.usual, SURE):
                return Adaptation()
        reason = None if self.sound else self._restore_if_collapsed(images, engine)
        self.sound = reason is None
        if reason is None:
            # If not finite, no weights are better, and the updates skip themselves.
            return Adaptation(predicted_only="few classes" if finite else None)
        burst = narrower(ClassMix.of(self._look(images, engine).probabilities), self.usual, SURE)
        return Adaptation(restored=reason, predicted_only="few classes" if burst else None)

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Examine the prediction of a learned query. If the learners have collapsed, return a new prediction."""
        self.counts += torch.tensor([len(images), 1])
        if prediction.adaptation.predicted_only:
            return prediction
        self.sound = False
        finite = bool(prediction.probabilities.isfinite().all())
        if finite:
            self.answers.add(prediction.probabilities)
            self._follow_agreement(prediction.agreement, len(images))
        recent, usual = self.agreement.tolist()
        unusual = narrower(self.answers, self.usual, SURE) or recent < usual / 2
        suspicious = not finite or (self.counts[0] > TRUST and unusual)
        due = int(self.counts[0]) % EVERY < len(images)
        if suspicious or (due and self._lost_source(engine)):
            if reason := self._restore_if_collapsed(images, engine):
                adaptation = replace(prediction.adaptation, restored=reason)
                return replace(average(self.learners, engine, images), adaptation=adaptation)
        elif due:
            self.good, self.next = self.next, WeightCopy(self.learners, int(self.counts[1]))
        return prediction

    def _glance(self, images: Tensor, engine: Engine, norm: Norm) -> Tensor:
        """Predict a few images cheaply: each image by one learner."""
        parts = [part for part in images.tensor_split(len(self.learners)) if len(part)]
        seen = engine.map(lambda learner, part: learner.predict(part, norm), self.learners[: len(parts)], parts)
        return torch.cat([torch.zeros(0, len(self.source.classes)), *seen])

    def _look(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict images by all learners, each image independently of the others."""
        return average(self.learners, engine, images, norm="running")

    def _lost_source(self, engine: Engine) -> bool:
        """Whether the learners have lost more than half of their knowledge of the source, beyond chance."""
        images = pixels.to_unit(self.source.images[self.probe])
        labels = self._glance(images, engine, "query").argmax(dim=1)  # running statistics may have drifted
        known = float((labels == self.source.labels[self.probe]).float().mean())
        self.known.clamp_(min=known)
        return known < (float(self.known) + self.chance) / 2 - 0.5 / math.sqrt(PROBED)

    def _restore_if_collapsed(self, images: Tensor, engine: Engine) -> str | None:
        """Compare the learners with their last good weights. If those are better, restore them and say why."""
        assert self.good
        assert self.next
        mine, lost = self._look(images, engine), self._lost_source(engine)
        now = WeightCopy(self.learners, int(self.counts[1]))
        copies = []
        for weights in (self.next, self.good):
            weights.put_back(self.learners)
            copies.append(self._look(images, engine))
        reason = compare(mine, copies, self.usual)
        if reason is None and lost and not self._lost_source(engine):
            reason = "they no longer knew the source"
        if reason is None:
            now.put_back(self.learners)
            return None
        for learner in self.learners:
            learner.optimiser.state.clear()
        self.next = self.good
        for mix in (self.glance, self.close, self.answers):
            mix.clear()
        self.agreement[0] = self.agreement[1]
        ago = int(self.counts[1]) - self.good.queries
        when = "1 query ago" if ago == 1 else f"{ago} queries ago"
        return f"the learners had collapsed ({reason}); the weights from {when} were restored"

    def _follow_agreement(self, agreement: float | None, samples: int) -> None:
        if agreement is None:
            return
        if not self.agreement.any():
            self.agreement.fill_(agreement)
        self.agreement += min(1, samples / RECENT) * torch.tensor([FAST, SLOW]) * (agreement - self.agreement)

    def state(self) -> dict[str, Tensor]:
        """The usual and recent numbers, without the copies of good weights."""
        mixes = {"usual": self.usual, "glance": self.glance, "close": self.close, "answers": self.answers}
        state = {name: mix.numbers for name, mix in mixes.items()}
        return state | {"agreement": self.agreement, "counts": self.counts, "known": self.known}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`. The current weights become the good ones."""
        for name, value in self.state().items():
            value.copy_(state[name])
        self.restore((None, None, False))

    def snapshot(self) -> GuardSnapshot:
        """The copies of good weights. Nothing changes a copy after it is made, so it is not copied again."""
        return self.good, self.next, self.sound

    def restore(self, snapshot: GuardSnapshot) -> None:
        """Go back to a result of `snapshot`."""
        self.good, self.next, self.sound = snapshot


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """A learner's weights and statistics in use, without its generator, its optimiser's moments and its other start."""
    others = ("generator", "optimiser.", "plain_start.")
    return {name: value for name, value in learner.state().items() if not name.startswith(others)}


def compare(mine: Prediction, copies: list[Prediction], usual: ClassMix) -> str | None:
    """What the learners have lost on the same images, compared with copies of their weights (the oldest last).

    If any copy sees few classes, the query has few: an old copy may be too weak to see them.

    >>> good, few = Prediction(torch.eye(4).repeat(8, 1), 0.9), Prediction(torch.eye(4)[[0] * 32], 0.9)
    >>> usual = ClassMix.of(good.probabilities)
    >>> compare(few, [good, good], usual)
    'they saw 1.0 classes in the query, their last good weights 4.0'
    >>> compare(few, [few, good], usual)
    >>> compare(Prediction(good.probabilities, 0.1), [good, good], usual)
    'they agreed on 10 % of the query, their last good weights on 90 %'
    """
    if not copies[-1].probabilities.isfinite().all():
        return None
    if not mine.probabilities.isfinite().all():
        return "their weights were no longer finite"
    few, *views = (ClassMix.of(prediction.probabilities) for prediction in (mine, *copies))
    if any(narrower(view, usual) for view in views):
        return None
    if narrower(few, views[-1], SURE):
        few_classes, classes = few.effective_classes, views[-1].effective_classes
        return f"they saw {few_classes:.1f} classes in the query, their last good weights {classes:.1f}"
    agreed = min(copy.agreement or 0.0 for copy in copies)
    chance = 1 / math.sqrt(len(mine.probabilities))  # at most two standard deviations of a share
    if mine.agreement is not None and mine.agreement < agreed / 2 - chance:
        before, now = 100 * agreed, 100 * mine.agreement
        return f"they agreed on {now:.0f} % of the query, their last good weights on {before:.0f} %"
    return None
