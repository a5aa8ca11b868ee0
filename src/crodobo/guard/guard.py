"""Guard: bursts of few classes are not learned, and learners that have collapsed get their last good weights back.

Both show in the same way: the samples of a query are taken for far fewer classes than usual. Whether that is the
stream or the learners, the last good weights tell: what they too see as a few classes is a burst, and is predicted
without being learned; where they see many, the learners have collapsed. Learners that no longer agree, or that no
longer know the public source, have collapsed as well.

What is usual is learned from the stream, from one sample in eight, so that watching costs next to nothing. In the first
1024 samples only weights that are no longer finite, or no longer know the source, are put back.
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
from crodobo.nn.learner import Learner, average

ONE_IN = 8  # samples, of which one is looked at before a query is learned
GLANCED = 8  # looked at samples that can raise a suspicion
RECENT = 64  # samples that a suspicion is judged by
TRUST = 1024  # samples of the stream until what is usual is known
HORIZON = 1600  # looked at samples over which that is forgotten
PROBED = 32  # samples of the source that the learners are asked now and then
EVERY = 512  # samples of the stream between two such times, and between two copies of good weights
SURE = 4.0  # standard deviations by which a suspicion has to be more than chance
SLOW, FAST = 0.02, 0.2  # how far 64 samples move the usual and the recent agreement


class Guard:
    """Watches the learners of a method from query to query.

    Parameters
    ----------
    learners
        Those of the method. Their weights are what is put back.
    source
        The labelled public data.
    """

    def __init__(self, learners: list[Learner], source: Source) -> None:
        self.learners, self.source = learners, source
        frequencies = torch.bincount(source.labels, minlength=len(source.classes)) / len(source)
        self.chance = float(frequencies.square().sum())
        self.usual = ClassMix(len(source.classes), horizon=HORIZON)
        self.glance = ClassMix(len(source.classes), horizon=GLANCED)
        self.close = ClassMix(len(source.classes), horizon=RECENT)
        self.answers = ClassMix(len(source.classes), horizon=RECENT)
        self.agreement = torch.zeros(2, dtype=torch.float64)  # the recent and the usual; 0 with one learner
        self.counts = torch.zeros(2, dtype=torch.int64)  # samples and queries so far
        self.known = torch.zeros(1, dtype=torch.float64)  # the largest share of the probe that was known
        self.probe = torch.randint(len(source), (PROBED,), generator=Generator().manual_seed(0))
        self.good: Weights | None = None
        self.next: Weights | None = None  # good if the queries after it are as well
        self.sound = False  # whether the learners were found not to have collapsed, and have learned nothing since

    def before(self, images: Tensor, engine: Engine) -> Adaptation:
        """Look at a query before it is learned: whether it should be, and whether the learners had collapsed."""
        if self.good is None:
            self.good = self.next = Weights(self.learners, int(self.counts[1]))
        looked = images[-int(self.counts[0]) % ONE_IN :: ONE_IN]
        seen = self._glance(looked, engine, "running")
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
        reason = None if self.sound else self._collapse(images, engine)
        self.sound = reason is None
        if reason is None:
            return Adaptation(held=finite)  # else there is no way back, and the updates are left out
        burst = narrower(ClassMix.of(self._look(images, engine).probabilities), self.usual, SURE)
        return Adaptation(restored=reason, held=burst)

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Look at the answer to a query that was learned; where the learners have collapsed, there is a new one."""
        self.counts += torch.tensor([len(images), 1])
        if prediction.adaptation.held:
            return prediction
        self.sound = False
        finite = bool(prediction.probabilities.isfinite().all())
        if finite:
            self.answers.add(prediction.probabilities)
            self._follow_agreement(prediction.agreement, len(images))
        recent, usual = self.agreement.tolist()
        strange = narrower(self.answers, self.usual, SURE) or recent < usual / 2
        suspicious = not finite or (self.counts[0] > TRUST and strange)
        due = int(self.counts[0]) % EVERY < len(images)
        if suspicious or (due and self._lost(engine)):
            if reason := self._collapse(images, engine):
                adaptation = replace(prediction.adaptation, restored=reason)
                return replace(average(self.learners, engine, images), adaptation=adaptation)
        elif due:
            self.good, self.next = self.next, Weights(self.learners, int(self.counts[1]))
        return prediction

    def _glance(self, images: Tensor, engine: Engine, norm: Norm) -> Tensor:
        """What the learners take a few images for, each image seen by one of them."""
        none = torch.zeros(0, len(self.source.classes))

        def look(learner: Learner, part: Tensor) -> Tensor:
            return learner.predict(part, norm) if len(part) else none

        return torch.cat(engine.map(look, self.learners, images.tensor_split(len(self.learners))))

    def _look(self, images: Tensor, engine: Engine) -> Prediction:
        """What all learners take images for, whatever else is among them."""
        return average(self.learners, engine, images, norm="running")

    def _known(self, engine: Engine) -> float:
        """The share of the probe that the learners know, whatever statistics they have run up."""
        images = pixels.to_unit(self.source.images[self.probe])
        labels = self._glance(images, engine, "query").argmax(dim=1)
        return float((labels == self.source.labels[self.probe]).float().mean())

    def _lost(self, engine: Engine) -> bool:
        """Whether the learners know less than half of what they knew of the source, and that is no chance."""
        known = self._known(engine)
        self.known.clamp_(min=known)
        return known < (float(self.known) + self.chance) / 2 - 0.5 / math.sqrt(PROBED)

    def _collapse(self, images: Tensor, engine: Engine) -> str | None:
        """Compare the learners with their last good weights; put those back, and say why, where they are better."""
        assert self.good
        assert self.next
        mine, lost = self._look(images, engine), self._lost(engine)
        now = Weights(self.learners, int(self.counts[1]))
        copies = []
        for weights in (self.next, self.good):
            weights.put_back(self.learners)
            copies.append(self._look(images, engine))
        reason = compare(mine, copies, self.usual)
        if reason is None and lost and not self._lost(engine):
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
        return f"the learners had collapsed ({reason}); their last good weights, of {ago} queries ago, are restored"

    def _follow_agreement(self, agreement: float | None, samples: int) -> None:
        if agreement is None:
            return
        if not self.agreement.any():
            self.agreement.fill_(agreement)
        self.agreement += min(1, samples / RECENT) * torch.tensor([FAST, SLOW]) * (agreement - self.agreement)

    def state(self) -> dict[str, Tensor]:
        """What is usual and recent, in a few numbers; the good weights are not among them."""
        mixes = {"usual": self.usual, "glance": self.glance, "close": self.close, "answers": self.answers}
        state = {name: mix.numbers for name, mix in mixes.items()}
        return state | {"agreement": self.agreement, "counts": self.counts, "known": self.known}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave; the weights as they are now are the good ones."""
        for name, value in self.state().items():
            value.copy_(state[name])
        self.good = self.next = None
        self.sound = False


class Weights:
    """A copy of the learners' weights and statistics as they were after so many queries, in memory alone."""

    def __init__(self, learners: list[Learner], queries: int) -> None:
        self.queries = queries
        self._copies = [{name: value.clone() for name, value in living(learner).items()} for learner in learners]

    @torch.no_grad()
    def put_back(self, learners: list[Learner]) -> None:
        """Let the learners have them again."""
        for learner, copies in zip(learners, self._copies, strict=True):
            for name, value in living(learner).items():
                value.copy_(copies[name])
            learner.keep_statistics()


def living(learner: Learner) -> dict[str, Tensor]:
    """A learner's weights and statistics themselves, without its generator and its optimiser's moments."""
    return {name: value for name, value in learner.state().items() if not name.startswith(("generator", "optimiser."))}


def compare(mine: Prediction, copies: list[Prediction], usual: ClassMix) -> str | None:
    """What the learners have lost on the same images against copies of their weights, the last the oldest; if anything.

    Where any copy sees few classes, there are few: an old one may be too weak to see them.

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
    chance = 1 / math.sqrt(len(mine.probabilities))  # two standard deviations of a share, at most
    if mine.agreement is not None and mine.agreement < agreed / 2 - chance:
        shares = f"{100 * mine.agreement:.0f} % of the query, their last good weights on {100 * agreed:.0f} %"
        return f"they agreed on {shares}"
    return None
