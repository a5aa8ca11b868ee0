"""Watch: decides for each query how it is normalised, what is learned from it, and whether to go back.

It has three rules.

- **Statistics.** A query of usual classes is normalised with its own statistics while it is learned, as in the paper.
  One of few classes is corrected for them, and a short one leans on the running statistics of the target.
- **Learning.** Nothing is learned from a query of few samples or of one class, from one that is unlike all earlier ones,
  or from a domain on which learners that know only the source do not agree. Its labels would be noise.
- **Going back.** A reference stays in memory: the learners as they were before the stream. Learners that see far fewer
  classes than the reference in the same samples, or agree far less, have been harmed. They get earlier weights.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from crodobo.core import pixels
from crodobo.core.prediction import Adaptation, Prediction, Reason
from crodobo.core.source import Source
from crodobo.engine import Engine
from crodobo.guard.agreement import Agreement, worse
from crodobo.guard.guard import WeightCopy
from crodobo.guard.mixedness import FULL, Mixedness
from crodobo.guard.reference import Look, Reference
from crodobo.nn.learner import Learner, average
from crodobo.nn.target_statistics import QueryNorm
from crodobo.storage.tensors import with_prefix

EXAMINED, COMPARED = 32, 16  # samples of a query that the reference looks at, and that the learners look at too
NARROW = 0.25  # narrowness from which a query's statistics are corrected
ONE_CLASS = 0.9  # narrowness from which nothing is learned
LOOK = 0.2
FEW = 8  # samples from which a query is learned
OWN_TRUST = 32  # samples from which a query's own statistics get their full weight
FAR = 4.0  # distance, in bursts of a single class, from which a query is of another domain
NEW = 16  # samples of a new domain that count as much as all that came before
AGREE = 0.5  # agreement of the reference, beyond chance, from which a domain is learned
SLOWEST = 0.25  # least share of the usual momentum with which statistics follow bursts
COPIES, EVERY = 2, 10  # copies of earlier weights, and learned queries between two of them
MEASURED = 512  # source samples that tell what classes do to the statistics


class Lesson(NamedTuple):
    """What the learners may learn from a query."""

    weight: float = 1.0  # of the losses on the target; 0 if only the source is learned
    usual: Tensor | None = None  # the usual predictions, if the query should not have all classes
    source: int = 16  # least size of the source batch beside the query
    reason: Reason | None = None  # why nothing is learned from the target


class View(NamedTuple):
    """What the reference found in a query."""

    norm: QueryNorm
    look: Look
    mine: list[Tensor]  # what the learners see in some samples
    far: bool  # whether it is of another domain than the stream so far
    new: bool  # whether the stream has changed its domain for good
    narrowness: float


class Watch:
    """Looks at each query before the learners do."""

    def __init__(self, learners: list[Learner], source: Source, own: float) -> None:
        self.learners, self.source, self.own = learners, source, own
        classes = len(source.classes)
        self.prior = torch.bincount(source.labels, minlength=classes) / len(source)
        self.mine, self.theirs, self.known = (Agreement(self.prior) for _ in range(3))
        self.counts = torch.zeros(5)  # learned queries; samples of this domain; of a row of far ones; owed; learned
        self.lesson = Lesson()
        indices = torch.randint(len(source), (MEASURED,), generator=torch.Generator().manual_seed(0))
        batches = [(pixels.to_unit(source.images[part]), source.labels[part]) for part in indices.split(128)]
        for learner in learners:
            learner.keep_target_statistics(self.prior, batches)
        self.reference = Reference(learners, self.prior)
        self.frame = Mixedness(self.prior, sum(learner.network.width for learner in learners))
        self.mixedness = Mixedness(self.prior, sum(learner.network.width for learner in learners))
        self.place = [mean.clone() for mean in self.reference.home]  # of the stream, in the reference's frame
        self.copies: tuple[WeightCopy, ...] = ()

    # Before a query is learned

    def before(self, images: Tensor, engine: Engine) -> Adaptation:
        """Examine a query. Sets how the learners normalise it, and `lesson`; may put earlier weights back."""
        view = self._examine(images, engine)
        restored = None
        if not view.far:
            restored = self._compare(images, view, engine)
        self._follow(len(images), view)
        self.narrow = view.narrowness
        for learner in self.learners:
            learner.query_norm = view.norm
        self.lesson = self._decide(len(images), view)
        return Adaptation(predicted_only=self.lesson.reason, restored=restored)

    def _examine(self, images: Tensor, engine: Engine) -> "View":
        """Let the reference and the learners look at some samples of a query."""
        count = len(images)
        look = self.reference.look(some(images, EXAMINED), engine)
        margin = FAR * (1 + 3 / len(look.features))
        first = bool(self.counts[1] == 0)
        far = self.reference.distance(look.place, self.reference.home if first else self.place) > margin
        mine, mix = self._ask(some(images, COMPARED), engine), None
        theirs = self.frame.narrowness(torch.stack(look.probabilities).mean(dim=0)) if not self.remote else None
        narrowness = theirs if theirs is not None else self.mixedness.narrowness(torch.stack(mine).mean(dim=0))
        if narrowness > NARROW:
            mine = self._ask(images, engine, theirs or 0.0) if count > COMPARED else mine
            every = torch.stack(mine).mean(dim=0)
            ours = self.mixedness.narrowness(every)
            narrowness = ours if theirs is None else (ours + theirs) / 2
            if narrowness > NARROW:
                mix = self.mixedness.unbiased(every).mean(dim=0)
        trust = min(1.0, (count - 1) / (OWN_TRUST - 1))
        bursts = 0.0 if mix is not None else self.mixedness.bursts * self.mixedness.blindness(torch.cat(mine))
        new = far and bool(first or self.counts[2] >= NEW)
        if far:
            own = count / (count + NEW) if count > 1 else 0.0
            norm = QueryNorm(mix, own, own, own if new else 0.0)
        else:
            start = count / (float(self.counts[1]) + count + FULL) if mix is None else 0.0  # the source is one query
            momentum = max(0.1 * min(1.0, count / FULL), start) * max(SLOWEST, 1 - bursts)
            norm = QueryNorm(mix, self.own * min(1.0, 2 - 2 * narrowness) * trust * (1 - bursts), trust, momentum)
        return View(norm, look, mine, far, new, narrowness)

    def _ask(self, images: Tensor, engine: Engine, narrowness: float = 0.0) -> list[Tensor]:
        """What the learners see in images whose classes are not known."""
        norm = QueryNorm(own=LOOK * min(1.0, 2 - 2 * narrowness) * min(1.0, (len(images) - 1) / (OWN_TRUST - 1)))

        @torch.no_grad()
        def predict(learner: Learner) -> Tensor:
            assert learner.target
            with learner.target.predicting(norm, len(images)):
                return learner.network.encode(images).probabilities

        return engine.map(predict, self.learners)

    def _compare(self, images: Tensor, view: "View", engine: Engine) -> str | None:
        """Compare the learners with the reference on the same samples. If they are worse, go back."""
        if self.remote:
            if self.counts[4] == 0:
                self.known.add(view.mine)
            return None
        self.known.add(view.look.probabilities)
        if self.mixedness.narrowness(torch.stack(view.look.probabilities).mean(dim=0)) > NARROW:
            return None
        self.theirs.add(view.look.probabilities)
        self.mine.add([each[:EXAMINED] for each in view.mine])
        reason = worse(self.mine, self.theirs)
        return self._go_back(images, reason, engine) if reason else None

    def _follow(self, count: int, view: "View") -> None:
        """Let what is known of the stream follow a query."""
        self.counts[2] = self.counts[2] + count if view.far else 0
        if view.far and not view.new:
            return
        if view.new:
            self.mixedness.forget_stream()
            self.frame.forget_stream()
            self.counts[1] = self.counts[4] = 0
        share = max(count / (float(self.counts[1]) + count), 0.1 * min(1.0, count / FULL))
        for place, here in zip(self.place, view.look.place, strict=True):
            place.lerp_(here, share)
        self.counts[1] += count
        self.mixedness.add(torch.stack(view.mine).mean(dim=0), view.look.features, count)
        self.frame.add(torch.stack(view.look.probabilities).mean(dim=0), view.look.features, count)

    def _decide(self, count: int, view: "View") -> Lesson:
        if count < FEW:
            return Lesson(0.0, reason="few samples")
        if view.far:
            return Lesson(0.0, reason="unlike earlier queries")
        if self.known.kappa < AGREE or (self.remote and self.counts[1] < 4 * FULL):
            return Lesson(0.0, reason="learners disagree")
        if view.narrowness > ONE_CLASS:
            return Lesson(0.0, reason="few classes")
        return Lesson(1 - view.narrowness, usual=self.mixedness.usual.clone()) if view.narrowness > NARROW else Lesson()

    @property
    def remote(self) -> bool:
        """Whether the stream is so far from the source that the reference does not know it."""
        return self.reference.distance(self.place, self.reference.home) > FAR

    # Going back

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
        ago = int(self.counts[0]) - weights.queries
        self.copies = tuple(each for each in self.copies if each.queries <= weights.queries)
        self.mine.clear()
        self.theirs.clear()
        when = "from before the stream" if weights.queries == 0 else f"from {ago} learned queries ago"
        return f"the learners had been harmed ({reason}); the weights {when} were restored"

    def source_due(self, samples: int, full: int) -> int:
        """The size of the source batch to learn now, if nothing is learned from these samples of the target; or 0.

        It is the number of samples since the last one, so that short queries do not mean more learning.
        """
        self.counts[3] += samples
        if self.counts[3] < self.lesson.source:
            return 0
        size, self.counts[3] = min(full, int(self.counts[3])), 0
        return size

    def after(self, images: Tensor, prediction: Prediction, engine: Engine) -> Prediction:
        """Count a query, and keep a copy of the weights now and then."""
        if prediction.adaptation.predicted_only is None:
            self.counts[0] += 1
            self.counts[4] += 1
            if int(self.counts[0]) % EVERY == 0:
                self.copies = (*self.copies, WeightCopy(self.learners, int(self.counts[0])))[-COPIES:]
        return prediction

    def before_answer(self, images: Tensor, engine: Engine) -> None:
        """Estimate the classes of a narrow query again, with what was learned from it."""
        norm = self.learners[0].query_norm
        if norm.mix is None:
            return
        for learner, each in zip(self.learners, self._ask(images, engine, self.narrow), strict=True):
            learner.query_norm = norm._replace(mix=self.mixedness.unbiased(each).mean(dim=0))

    def predict(self, images: Tensor, engine: Engine) -> Prediction:
        """Predict without learning. The reference answers if the learners are worse on these images."""
        view = self._examine(images, engine)
        for learner in self.learners:
            learner.query_norm = view.norm
        return average(self.learners, engine, images)

    # State

    def state(self) -> dict[str, Tensor]:
        """What is usual, and the reference."""
        parts = {"usual": self.mixedness.tensors(), "mine": self.mine.tensors(), "theirs": self.theirs.tensors()}
        parts |= {"frame": self.frame.tensors()}
        parts["known"] = self.known.tensors()
        state = {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}
        state |= {f"place.{number}": place for number, place in enumerate(self.place)}
        state |= {f"reference.{name}": value for name, value in self.reference.state().items()}
        return state | {"counts": self.counts}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        for name, value in self.state().items():
            if not name.startswith("reference."):
                value.copy_(state[name])
        self.reference.load_state(with_prefix("reference.", state))

    def snapshot(self) -> tuple[WeightCopy, ...]:
        """The copies of weights. Nothing changes a copy after it is made."""
        return self.copies

    def restore(self, snapshot: tuple[WeightCopy, ...]) -> None:
        """Go back to a result of `snapshot`."""
        self.copies = snapshot


def some(images: Tensor, most: int) -> Tensor:
    """At most so many of the images, evenly spaced."""
    return images[:: max(1, len(images) // most)][:most]
