"""Observer: the one interface through which progress is reported."""

from pathlib import Path

from crodobo.core.counts import Counts


class Observer:
    """Receives progress. This one ignores everything; a subclass overrides what it wants to show.

    Methods may be called from the learners' threads.
    """

    def note(self, text: str) -> None:
        """A message worth a line."""

    def already_finished(self, folder: Path) -> None:
        """The run in this folder was finished before, and is not run again."""

    def reading(self, done: int, total: int) -> None:
        """This many images of the source are decoded."""

    def warming_up(self, steps: int, learners: int = 1, rounds: int = 1) -> None:
        """The warm-up begins. Each learner takes this many steps in each round."""

    def warmed_up_step(self) -> None:
        """One learner took one warm-up step."""

    def streaming(self, queries: int) -> None:
        """The stream begins. It has this many queries, or 0 if the number is not known."""

    def query(self, counts: Counts) -> None:
        """A query was predicted and erased, or a stream is waiting for more."""

    def jobs(self, total: int, finished: int) -> None:
        """A comparison begins with this many jobs, some of them finished before."""

    def job_started(self, title: str) -> None:
        """A job of a comparison begins."""

    def job_progress(self, title: str, done: int, total: int, text: str) -> None:
        """A job is this far; `text` is its state in a few words."""

    def job_ended(self, title: str, problem: str | None) -> None:
        """A job ended. `problem` says why it failed, if it did."""
