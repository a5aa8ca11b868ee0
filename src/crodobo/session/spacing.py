"""Spacing: how much must be learned before another state of the learners may be stored.

The difference of two states reveals the gradient of the queries learned between them. Anyone who has the public data
and the settings can compute the state before the first query, so that one counts as stored.
"""

from crodobo.core.prediction import Adaptation


class Spacing:
    """Counts the queries learned since the last stored state.

    Parameters
    ----------
    every
        Queries from one stored state to the next. With 1, every state may be stored.
    private
        Whether no state may be stored earlier, not even at a stop.

    Examples
    --------
    >>> spacing = Spacing(2, private=True)
    >>> spacing.add(Adaptation())
    >>> spacing.missing
    1
    """

    def __init__(self, every: int, *, private: bool) -> None:
        self.every, self.private = every, private
        self.learned = 0  # queries since the last stored state
        self.changed = False  # whether the learners differ from that state

    @property
    def due(self) -> bool:
        """Whether it is time to store the state."""
        return self.learned >= self.every

    @property
    def missing(self) -> int:
        """How many more queries must be learned before the state may be stored."""
        return self.every - self.learned if self.private and self.changed and not self.due else 0

    def add(self, adaptation: Adaptation) -> None:
        """Count a query, if the learners have learned from it.

        Earlier weights that were restored can be close to the stored state, so counting begins again.
        """
        self.changed = True
        if not self.private or self.every == 1:
            self.learned += 1
        elif adaptation.restored:
            self.learned = 0
        elif not (adaptation.predicted_only or adaptation.skipped):
            self.learned += 1

    def stored(self) -> None:
        """Note that the current state is stored."""
        self.learned, self.changed = 0, False
