"""WayBack: copies of earlier weights, and the comparison with the reference that says when the learners need them."""

from collections.abc import Callable

import torch
from torch import Tensor

from crodobo.guard.agreement import Agreement, worse
from crodobo.guard.guard import WeightCopy
from crodobo.guard.reference import Reference
from crodobo.nn.learner import Learner

COPIES, EVERY = 2, 10  # copies of earlier weights, and learned queries between two


class WayBack:
    """Compares the learners with the reference on the same mixed samples, and puts earlier weights back into them."""

    def __init__(self, learners: list[Learner], reference: Reference, prior: Tensor) -> None:
        self.learners, self.reference, self.prior = learners, reference, prior
        self.mine, self.theirs = Agreement(prior), Agreement(prior)
        self.learned = torch.zeros(1)  # queries
        self.unproven = torch.zeros(1)  # queries learned since earlier weights were last restored
        self.copies: tuple[WeightCopy, ...] = ()

    def tensors(self) -> dict[str, Tensor]:
        """Everything that changes, by name, but for the copies."""
        parts = {"mine": self.mine.tensors(), "theirs": self.theirs.tensors(), "queries": self._queries}
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}

    @property
    def _queries(self) -> dict[str, Tensor]:
        return {"learned": self.learned, "unproven": self.unproven}

    def count_learned(self) -> None:
        """Count a query that was learned."""
        for count in self._queries.values():
            count += 1

    def copy_if_due(self) -> None:
        """Copy the weights now and then, after a learned query that has shown no harm."""
        if (learned := int(self.learned)) % EVERY == 0:
            self.copies = (*self.copies, WeightCopy(self.learners, learned))[-COPIES:]

    def continue_from_checkpoint(self) -> None:
        """Take the weights of a checkpoint for old ones, so that a way back does not lose all that was ever learned."""
        self.copies = (WeightCopy(self.learners, int(self.learned), stored=True),) if self.learned else ()

    def compare(self, probabilities: Tensor, agreement: float | None, reference: list[Tensor]) -> str | None:
        """Count samples that both have predicted. Says what the learners have lost compared with the reference."""
        self.theirs.add(reference)
        self.mine.count(probabilities, agreement)
        return worse(self.mine, self.theirs)

    def to_good_weights(self, ask: Callable[[], list[Tensor]]) -> str:
        """Put the newest weights back that are not worse than the reference, or else its own. Says from when they are.

        `ask` gives the learners' predictions of the samples that showed the harm. Few samples cannot show whether a
        copy is good, so one that is put back is not used again: if the harm goes on, the next one is older.
        """
        for weights in (*self.copies[::-1], WeightCopy(self.reference.learners, 0)):
            weights.put_back(self.learners)
            mine = Agreement(self.prior)
            mine.add(ask())
            if worse(mine, self.theirs) is None:
                break
        self.copies = tuple(copy for copy in self.copies if copy.queries < weights.queries)
        return self._continue_with(weights)

    def to_old_weights(self) -> str:
        """Put weights back from before the last queries, good or not. Says from when they are."""
        learned = int(self.learned)
        old = [copy for copy in self.copies if copy.stored or learned - copy.queries >= EVERY]
        weights = old[-1] if old else WeightCopy(self.reference.learners, 0)
        weights.put_back(self.learners)
        self.copies = tuple(copy for copy in self.copies if copy.queries <= weights.queries)
        return self._continue_with(weights)

    def _continue_with(self, weights: WeightCopy) -> str:
        for learner in self.learners:
            learner.optimiser.state.clear()
        self.unproven.zero_()
        self.mine.clear()
        self.theirs.clear()
        if not weights.queries:
            return "from before the stream"
        ago = int(self.learned) - weights.queries
        return f"from {ago} learned {'query' if ago == 1 else 'queries'} ago"
