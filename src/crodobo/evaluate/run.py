"""A run: one method over one benchmark's stream, from settings to result files."""

import json
import random
from pathlib import Path
from typing import Any

from torch import Tensor

from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction
from crodobo.data import Benchmark, load_benchmark
from crodobo.data.order import shuffled
from crodobo.errors import BadCheckpoint, BadQuery, CrodoboError, Interrupted
from crodobo.evaluate.outcome import Exhibit, Outcome
from crodobo.evaluate.protocols import one_pass
from crodobo.evaluate.report import RESULT_FILES, write_results
from crodobo.evaluate.report.drawing import check_report_packages
from crodobo.evaluate.settings import RunSettings
from crodobo.session.checkpoint import NAME as CHECKPOINT
from crodobo.session.checkpoint import delete_checkpoint, differences
from crodobo.session.session import Session

EXHIBITED = 24  # samples of the qualitative figure


def run(
    settings: RunSettings,
    out: Path,
    *,
    fresh: bool = False,
    warm_start: Path | None = None,
    observer: Observer | None = None,
) -> dict[str, Any]:
    """Run a method over a benchmark's stream and write the results to the folder `out`.

    An unfinished run in the folder is continued, and a finished one is returned as it is; `fresh` starts over, and old
    results stay until there are new ones. A run that was killed and continued ends with the same predictions as one
    that was not. `warm_start` is a file of learners that have learned the source.
    """
    check_report_packages()
    benchmark = load_data(settings, observer or Observer())
    stream = RunStream(settings, benchmark)
    with Session(settings, out, observer=observer, progress=stream.progress) as session:
        refuse_foreign_files(out)
        unfinished = (out / CHECKPOINT).is_file()
        if not fresh and not unfinished and (result := finished(out, settings)):
            check_same_data(result, benchmark, out)
            session.observer.already_finished(out)
            return result
        session.load(benchmark, fresh=fresh, warm_start=warm_start)
        if session.restored:
            stream.restore(session.restored)
        session.start(after=stream.record.queries)
        stream.take_all(session)
        outcome = stream.outcome(session)
        try:
            result = write_results(out, outcome, session.method)
        except OSError as error:
            remedy = "Make room, then run the same command to go on from the last checkpoint."
            raise CrodoboError(f"The results could not be written to {out} ({error.strerror}).", remedy) from error
        delete_checkpoint(out)
    return result


class RunStream:
    """The stream of a benchmark, scored as it is predicted."""

    def __init__(self, settings: RunSettings, benchmark: Benchmark) -> None:
        self.settings, self.benchmark = settings, benchmark
        self.record = StreamRecord(ConfusionMatrix(len(benchmark.source.classes)))
        self.order = benchmark.order(settings.order_seed, settings.stream)
        self.queries = len(self.order.split(settings.query_size)[: settings.queries])
        self._exhibited = random.Random(settings.options.seed).randrange(self.queries) + 1
        self._exhibit: dict[str, Any] | None = None

    def progress(self) -> dict[str, Any]:
        """What a checkpoint stores of the run."""
        return {"record": self.record.as_data(), "exhibit": self._exhibit}

    def restore(self, progress: dict[str, Any]) -> None:
        """Go on from what `progress` returned."""
        self.record, self._exhibit = StreamRecord.from_data(progress["record"]), progress["exhibit"]

    def take_all(self, session: Session) -> None:
        """The stream from where it is to its end, or to a request to stop."""
        settings, record = self.settings, self.record
        session.method.expect(self.queries)
        counts = session.counts
        counts.queries, counts.refused, counts.accuracy = len(record.rows), len(record.refused), record.online_accuracy
        session.observer.streaming(self.queries)
        size, seed, start = settings.query_size, settings.order_seed, record.queries
        stream = self.benchmark.stream(
            size, seed, kind=settings.stream, start=start, queries=self.queries, memory=session.memory
        )
        for query, labels in stream:

            def score(prediction: Prediction, number: int, seconds: float, labels: Tensor = labels) -> None:
                record.add(prediction, labels, seconds)
                counts.accuracy = record.online_accuracy
                self._keep_exhibit(prediction)

            try:
                session.take(query, commit=score)
            except BadQuery as error:
                record.refuse(len(labels), str(error))
            if session.stop.requested and record.queries < self.queries:
                saved = session.checkpoint()
                remedy = "Run the same command to go on." if saved else "No checkpoint was written; start again."
                raise Interrupted(f"Stopped after query {record.queries} of {self.queries}.", remedy)
        if session.spacing.changed:  # else the last query has written it
            session.checkpoint()

    def outcome(self, session: Session) -> Outcome:
        """The finished run, with the final model's score."""
        settings, benchmark = self.settings, self.benchmark
        streamed = self.order[: self.queries * settings.query_size]
        again = streamed
        if settings.stream != "random":  # one-pass scores the model, so its batches have mixed classes
            again = streamed[shuffled(streamed, settings.order_seed)]
        return Outcome(
            settings=settings,
            benchmark=benchmark,
            record=self.record,
            final=one_pass(session.method, benchmark.images, benchmark.labels, settings.query_size, again),
            exhibit=Exhibit(**self._exhibit) if self._exhibit else None,
            streamed=streamed,
            warmup_seconds=session.warmup_seconds,
            learning=session.method.in_words,
            proof=session.prover.scan,
            ledger=session.ledger.id,
        )

    def _keep_exhibit(self, prediction: Prediction) -> None:
        """Remember which source samples one query was learned with, for the qualitative figure."""
        if self.benchmark.public and self.record.queries == self._exhibited:
            bootstrap = [drawn[:EXHIBITED].tolist() for drawn in prediction.adaptation.bootstrap]
            self._exhibit = {"query": self._exhibited, "bootstrap": bootstrap}


def load_data(settings: RunSettings, observer: Observer) -> Benchmark:
    """The benchmark of a run."""
    return load_benchmark(
        settings.benchmark, settings.image_size, settings.data, cache_size=settings.cache_size, observer=observer
    )


def finished(out: Path, settings: RunSettings) -> dict[str, Any] | None:
    """The result of a run with the same settings that has ended in this folder."""
    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
        ended = RunSettings.identity_of(result["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if ended != settings.identity:
        problem = f"{out} holds a finished run with other settings: {differences(ended, settings.identity)}."
        remedy = "Choose another folder, or start over to replace it."
        raise BadCheckpoint(problem, remedy, settings=("out", "fresh"))
    return result


def check_same_data(result: dict[str, Any], benchmark: Benchmark, out: Path) -> None:
    """Refuse a result whose images have changed since."""
    if result.get("data_stamp", "") != benchmark.stamp:
        problem = f"The images or their labels have changed since the run in {out}."
        raise BadCheckpoint(problem, "Choose another folder, or start over.", settings=("out", "fresh"))


def refuse_foreign_files(out: Path) -> None:
    """Refuse to overwrite files that no run has written."""
    existing = [name for name in RESULT_FILES if (out / name).exists()]
    if existing and not (out / "result.json").is_file() and not (out / CHECKPOINT).is_file():
        problem = f"{out} has a file {existing[0]} that no run has written."
        raise CrodoboError(problem, "Choose another folder, or move it away.", settings=("out",))
