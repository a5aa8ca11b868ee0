"""Who is told what a run, a private stream or a service is doing."""

from crodobo.metrics import StreamRecord


class Reporter:
    """Told what a run is doing as it does it. This one keeps silent."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def reading(self, done: int, total: int) -> None:
        """So many images of the source are decoded."""

    def warming_up(self, steps: int) -> None:
        """The warm-up begins; all learners together take this many steps."""

    def warmed_up_step(self) -> None:
        """One learner has taken one step. Called from the learners' threads."""

    def streaming(self, queries: int) -> None:
        """The stream begins, of so many queries in all."""

    def query(self, record: StreamRecord) -> None:
        """A query has been predicted and erased."""
