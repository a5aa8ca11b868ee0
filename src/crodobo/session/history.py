"""History: earlier states of the learners, kept in memory only, so that a session can go back to one of them.

A state is everything that a checkpoint holds. It contains no target data.
"""

import time
from typing import NamedTuple

from crodobo.errors import NoEarlierState
from crodobo.ledger.entry import now
from crodobo.methods import Method
from crodobo.methods.base import Snapshot


class Moment(NamedTuple):
    """The state of the learners after a query."""

    query: int  # its number
    learned: int  # queries that the learners had learned from
    time: str
    seconds: float  # of the monotonic clock
    state: Snapshot


class Rollback(NamedTuple):
    """When the learners went back: after which query, and to the state after which earlier one."""

    query: int
    to: int
    time: str


class History:
    """The last states of the learners.

    Parameters
    ----------
    keep
        How many states are kept. 0 keeps none.
    every
        Queries that are learned from one kept state to the next, at least.
    """

    def __init__(self, keep: int = 0, every: int = 20) -> None:
        self.keep, self.every = keep, every
        self.moments: list[Moment] = []  # the oldest first
        self.rollbacks = 0
        self.last_rollback: Rollback | None = None
        self._since = 0  # queries learned since the newest kept state

    def begin(self, method: Method, query: int, learned: int) -> None:
        """Forget all states, and keep the current one."""
        self.moments = []
        self._add(method, query, learned)

    def learned(self) -> None:
        """Note that a query was learned."""
        self._since += 1

    def stored(self, method: Method, query: int, learned: int) -> None:
        """Note that a checkpoint of the current state is written, and keep the state if it is time.

        Other states are not kept: going back to one would write it to disk, perhaps close to a checkpoint.
        """
        if self._since >= self.every:
            self._add(method, query, learned)

    def find(
        self, query: int, *, queries: int | None = None, seconds: float | None = None, to: int | None = None
    ) -> Moment:
        """The newest kept state that is old enough, seen from the query with this number.

        Parameters
        ----------
        query
            The number of the last query.
        queries
            The state must be at least this many queries old.
        seconds
            The state must be at least this many seconds old.
        to
            The state must be from this query or from an earlier one.

        Without any of them it is the newest state from which the learners have learned something since.
        """
        if not self.moments:
            problem = "No earlier states of the learners are kept."
            raise NoEarlierState(problem, "Let states be kept, or reset the learners.", settings=("keep_states",))
        clock, oldest = time.monotonic(), self.moments[0]
        if queries is not None:
            wanted = f"at least {queries} queries old"
            found = [moment for moment in self.moments if query - moment.query >= queries]
        elif seconds is not None:
            wanted = f"at least {seconds:g} seconds old"
            found = [moment for moment in self.moments if clock - moment.seconds >= seconds]
        elif to is not None:
            wanted = f"from query {to} or before"
            found = [moment for moment in self.moments if moment.query <= to]
        else:
            wanted = "earlier than the current one"
            found = self.moments if self._since else self.moments[:-1]
        if not found:
            ago = query - oldest.query
            age = f"{ago} {'query' if ago == 1 else 'queries'} and {clock - oldest.seconds:.0f} seconds ago"
            remedy = f"The oldest is from query {oldest.query}, {age}: choose that one, or reset the learners."
            raise NoEarlierState(f"No kept state is {wanted}.", remedy)
        return found[-1]

    def go_back(self, method: Method, moment: Moment, query: int) -> None:
        """Restore a kept state after the query with this number. Newer states are dropped."""
        method.restore(moment.state)
        del self.moments[self.moments.index(moment) + 1 :]
        self._since = 0
        self.rollbacks += 1
        self.last_rollback = Rollback(query, moment.query, now())

    def _add(self, method: Method, query: int, learned: int) -> None:
        self._since = 0
        if not self.keep:
            return
        full = len(self.moments) == self.keep
        old = self.moments.pop(0).state if full else None  # its memory is used again
        # Without the guard's copies of good weights: after a rollback the restored weights count as good.
        state = method.snapshot(old)._replace(guard=None)
        self.moments.append(Moment(query, learned, now(), time.monotonic(), state))
