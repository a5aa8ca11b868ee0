"""A run: one method over one benchmark's stream, from settings to result files."""

import json
import random
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from crodobo.checkpoint import delete_checkpoint, load_checkpoint, save_checkpoint
from crodobo.config import RunSettings
from crodobo.data import load_benchmark
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted
from crodobo.interrupt import StopSignal
from crodobo.learner import make_learners
from crodobo.methods import Method, get_method
from crodobo.metrics import ConfusionMatrix, StreamRecord
from crodobo.model import save_model
from crodobo.outcome import Exhibit, Outcome
from crodobo.prediction import Prediction
from crodobo.protocol import one_pass, online
from crodobo.report import RESULT_FILES, write_results

EXHIBITED = 24  # samples of the qualitative figure


class Reporter:
    """Told what a run is doing as it does it. This one keeps silent."""

    def note(self, text: str) -> None:
        """Something worth a line."""

    def warming_up(self, steps: int) -> None:
        """The warm-up begins; all learners together take this many steps."""

    def warmed_up_step(self) -> None:
        """One learner has taken one step. Called from the learners' threads."""

    def streaming(self, queries: int) -> None:
        """The stream begins, of so many queries in all."""

    def query(self, record: StreamRecord) -> None:
        """A query has been predicted and erased."""


def run(settings: RunSettings, out: Path, *, resume: bool = False, reporter: Reporter | None = None) -> dict[str, Any]:
    """Run a method over a benchmark's stream and write the results to the folder `out`.

    With `resume`, go on from the folder's checkpoint where there is one. A run that was killed and resumed ends
    with the same predictions as one that was not.
    """
    reporter = reporter or Reporter()
    identity = _identity(settings.model_dump(mode="json"))
    benchmark = load_benchmark(settings.benchmark, settings.image_size)
    prepare_folder(out)
    stored = load_checkpoint(out, identity) if resume else None
    if resume and not stored:
        if finished := _finished(out, identity):
            reporter.note(f"{out} holds the finished run already; nothing is left to do")
            return finished
        reporter.note(f"there is nothing to resume in {out}; starting from the beginning")
    options = settings.options
    method = get_method(settings.method)(
        benchmark.source,
        augment=benchmark.augment,
        **dict(options) | {"learners": make_learners(benchmark.source, options.learners, options.seed, options)},
    )

    with StopSignal() as stop:
        if stored:
            progress = restore(method, *stored)
        else:
            _clear(out, reporter)  # not before here: what is wrong with the settings has come out by now
            progress = warm_up(method, reporter, stop)
        record = StreamRecord.from_data(progress["record"])
        if stored:
            reporter.note(f"going on after query {record.queries}")

        order = benchmark.order(options.seed)
        queries = len(order.split(settings.query_size)[: settings.queries])
        shown = random.Random(options.seed).randrange(queries) + 1

        def checkpoint() -> None:
            progress["record"] = record.as_data()
            try:
                save_checkpoint(out, method.state(), identity, progress)
            except OSError as error:
                reporter.note(f"no checkpoint could be written ({error.strerror}); the run goes on without")

        def after_query(record: StreamRecord, prediction: Prediction | None) -> None:
            reporter.query(record)
            if prediction and record.queries == shown:
                bootstrap = [drawn[:EXHIBITED].tolist() for drawn in prediction.adaptation.bootstrap]
                progress["exhibit"] = {"query": shown, "bootstrap": bootstrap}
            if stop.requested and record.queries < queries:
                checkpoint()
                raise Interrupted(
                    f"stopped after query {record.queries} of {queries}; the same command with --resume goes on"
                )
            if record.queries % settings.checkpoint_every == 0 and record.queries < queries:
                checkpoint()

        if not stored:
            checkpoint()
        reporter.streaming(queries)
        stream = benchmark.stream(settings.query_size, options.seed, start=record.queries, queries=settings.queries)
        online(method, stream, record, after_query)

    streamed = order[: queries * settings.query_size]
    outcome = Outcome(
        settings=settings,
        benchmark=benchmark,
        record=record,
        final=one_pass(method, benchmark.images[streamed], benchmark.labels[streamed], settings.query_size),
        exhibit=Exhibit(**progress["exhibit"]) if progress["exhibit"] else None,
        streamed=streamed,
        warmup_seconds=progress["warmup_seconds"],
    )
    save_model(out / "model.safetensors", method)
    result = write_results(out, outcome)
    delete_checkpoint(out)
    return result


def warm_up(method: Method, reporter: Reporter, stop: StopSignal) -> dict[str, Any]:
    """Warm the learners up on the source; the progress of a run that begins."""

    def after_step() -> None:
        if stop.requested:
            raise Interrupted("stopped during the warm-up, before the first query; start again")
        reporter.warmed_up_step()

    reporter.warming_up(method.settings.warmup * len(method.learners))
    started = time.perf_counter()
    method.warm_up(after_step)
    return {
        "record": StreamRecord(ConfusionMatrix(len(method.source.classes))).as_data(),
        "exhibit": None,
        "warmup_seconds": time.perf_counter() - started,
    }


def restore(method: Method, tensors: dict[str, Tensor], progress: dict[str, Any]) -> dict[str, Any]:
    """Put a method where a checkpoint was made; the progress of the run so far."""
    try:
        method.load_state(tensors)
    except (KeyError, RuntimeError) as error:
        raise BadCheckpoint("the checkpoint is of another version of crodobo; start over without --resume") from error
    return progress


def prepare_folder(folder: Path) -> None:
    """Make the folder and see that it can be written to, before any work is done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise CrodoboError(
            f"the folder {folder} cannot be written to ({error.strerror}); choose another with --out"
        ) from error


def _identity(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the predictions; a run may be resumed with others for the rest."""
    options = {name: value for name, value in settings["options"].items() if name != "parallel"}
    return {name: value for name, value in settings.items() if name != "checkpoint_every"} | {"options": options}


def _finished(out: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a run with the same settings that has ended in this folder."""
    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        return result if _identity(result["settings"]) == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _clear(out: Path, reporter: Reporter) -> None:
    """Remove what an earlier run left, so that no folder ever mixes two."""
    if delete_checkpoint(out):
        reporter.note(f"starting over; the unfinished run in {out} could have been continued with --resume")
    for name in RESULT_FILES:
        (out / name).unlink(missing_ok=True)
