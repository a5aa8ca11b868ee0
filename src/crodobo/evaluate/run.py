"""A run: one method over one benchmark's stream, from settings to result files."""

import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from crodobo.burn.levels import memory_for
from crodobo.burn.proof import prove_at_start
from crodobo.config import MethodSettings
from crodobo.core.memory import Memory
from crodobo.core.metrics import ConfusionMatrix, StreamRecord
from crodobo.core.observer import Observer
from crodobo.core.prediction import Prediction
from crodobo.core.query import Query
from crodobo.data import Benchmark, load_benchmark
from crodobo.errors import BadCheckpoint, CrodoboError, Interrupted
from crodobo.evaluate.outcome import Exhibit, Outcome
from crodobo.evaluate.protocols import one_pass, online
from crodobo.evaluate.report import RESULT_FILES, write_results
from crodobo.evaluate.settings import RunSettings
from crodobo.ledger.ledger import NAME as LEDGER
from crodobo.ledger.ledger import Ledger
from crodobo.ledger.signing import load_signing_key
from crodobo.methods import Method, get_method
from crodobo.methods.base import check_runs_online
from crodobo.nn.learner import Learner, make_learners
from crodobo.session.checkpoint import NAME as CHECKPOINT
from crodobo.session.checkpoint import delete_checkpoint, differences, load_checkpoint, save_checkpoint
from crodobo.session.stop import StopSignal
from crodobo.session.warm_start import load_warm_start, warm_learners
from crodobo.storage.lock import locked_folder

EXHIBITED = 24  # samples of the qualitative figure
FREE = ("checkpoint_every", "cache_size")  # settings that a run may be resumed with other values of


def run(
    settings: RunSettings,
    out: Path,
    *,
    fresh: bool = False,
    warm_start: Path | None = None,
    sign_key: Path | None = None,
    reporter: Observer | None = None,
) -> dict[str, Any]:
    """Run a method over a benchmark's stream and write the results to the folder `out`.

    With `resume`, go on from the folder's checkpoint where there is one. A run that was killed and resumed ends
    with the same predictions as one that was not. Results that are in the folder already stay until there are new ones.
    `warm_start` is a file of learners that have been warmed up before. Each query's receipt goes to the ledger of the
    folder, signed if there is a `sign_key`.
    """
    reporter = reporter or Observer()
    kind = get_method(settings.method)
    check_runs_online(kind, settings.options)
    key = load_signing_key(sign_key) if sign_key else None
    memory = memory_for(settings.options.burn)
    benchmark = load_data(settings, reporter)
    with locked_folder(out), Ledger(out / LEDGER, key) as ledger, StopSignal() as stop:
        _refuse_strangers(out)
        identity = identity_of(settings.model_dump(mode="json"))
        stored = None if fresh else load_checkpoint(out, identity)
        if not fresh and not stored:
            if result := finished(out, identity):
                check_same_data(result, benchmark, out)
                reporter.note(f"{out} holds the finished run already; nothing is left to do")
                return result
            reporter.note(f"there is nothing to resume in {out}; starting from the beginning")
        options = settings.options
        if stored:
            learners = make_learners(benchmark.source, options.learners, options.seed, options)
            method = make_method(kind, benchmark, learners, options)
            progress = restore(method, benchmark, *stored)
        else:
            if delete_checkpoint(out):
                reporter.note(f"starting over; the unfinished run in {out} could have been continued with --resume")
            if warm_start:
                learners, seconds = load_warm_start(warm_start, benchmark, options)
            else:
                learners, seconds = warm(benchmark, options, reporter, stop)
            method = make_method(kind, benchmark, learners, options)
            progress = beginning(benchmark, seconds)

        outcome = stream_through(method, benchmark, settings, progress, out, memory, ledger, reporter, stop)
        try:
            result = write_results(out, outcome, method)
        except OSError as error:
            raise CrodoboError(
                f"the results could not be written to {out} ({error.strerror}); make room, then the same command "
                "with --resume goes on from the last checkpoint"
            ) from error
        delete_checkpoint(out)
    return result


def stream_through(
    method: Method,
    benchmark: Benchmark,
    settings: RunSettings,
    progress: dict[str, Any],
    out: Path,
    memory: Memory,
    ledger: Ledger,
    reporter: Observer,
    stop: StopSignal,
) -> Outcome:
    """The stream from where the progress is to its end, with receipts and checkpoints, and the final model's score.

    Under strict burning the proof that nothing is left of a query comes first.

    A query's receipt is on disk before a checkpoint knows of the query: none that counts is without one. Queries that a
    crash throws a run back over are met again, and have two.
    """
    seed, kind, size = settings.order_seed, settings.stream, settings.query_size
    identity = identity_of(settings.model_dump(mode="json"))
    order = benchmark.order(seed, kind)
    queries = len(order.split(size)[: settings.queries])
    shown = random.Random(settings.options.seed).randrange(queries) + 1
    record = StreamRecord.from_data(progress["record"])

    def checkpoint() -> bool:
        progress["record"] = record.as_data()
        try:
            save_checkpoint(out, method.state(), identity, progress)
        except OSError as error:
            reporter.note(f"no checkpoint could be written ({error.strerror}); the run goes on without")
            return False
        return True

    def after_query(record: StreamRecord, prediction: Prediction | None) -> None:
        reporter.query(record)
        if prediction and prediction.adaptation.restored:
            reporter.note(record.restored[-1])
        if prediction and benchmark.public and record.queries == shown:
            bootstrap = [drawn[:EXHIBITED].tolist() for drawn in prediction.adaptation.bootstrap]
            progress["exhibit"] = {"query": shown, "bootstrap": bootstrap}
        last = record.queries == queries
        stopping = stop.requested and not last
        if last or stopping or record.queries % settings.checkpoint_every == 0:
            saved = checkpoint()
            if stopping:
                way = "the same command with --resume goes on" if saved else "without a checkpoint; start again"
                raise Interrupted(f"stopped after query {record.queries} of {queries}; {way}")

    def after_burn(query: Query, samples: int) -> None:
        ledger.burned(samples=samples, wiped=query.wiped)

    proof = prove_at_start(method, memory, size, reporter.note)
    ledger.begin(settings.model_dump(mode="json"), after=record.queries, scan=proof.as_numbers() if proof else None)
    if record.queries:
        reporter.note(f"going on after query {record.queries}")
    else:
        checkpoint()
    method.expect(queries)
    reporter.streaming(queries)
    stream = benchmark.stream(size, seed, kind=kind, start=record.queries, queries=settings.queries, memory=memory)
    online(method, stream, record, after_query, after_burn)

    streamed = order[: queries * size]
    again = streamed  # one-pass meets mixed classes whatever the stream was like: it is the model that is scored
    if settings.stream != "random":
        again = streamed[torch.randperm(len(streamed), generator=Generator().manual_seed(settings.order_seed))]
    return Outcome(
        settings=settings,
        benchmark=benchmark,
        record=record,
        final=one_pass(method, benchmark.images, benchmark.labels, size, again),
        exhibit=Exhibit(**progress["exhibit"]) if progress["exhibit"] else None,
        streamed=streamed,
        warmup_seconds=progress["warmup_seconds"],
        proof=proof,
    )


def load_data(settings: RunSettings, reporter: Observer) -> Benchmark:
    """The benchmark of a run."""
    return load_benchmark(
        settings.benchmark, settings.image_size, settings.data, cache_size=settings.cache_size, observer=reporter
    )


def warm(
    benchmark: Benchmark, options: MethodSettings, reporter: Observer, stop: StopSignal
) -> tuple[list[Learner], float]:
    """Learners that have learned the source, and the seconds that it took."""

    def after_step() -> None:
        if stop.requested:
            raise Interrupted("stopped during the warm-up, before the first query; start again")
        reporter.warmed_up_step()

    reporter.warming_up(options.warmup * options.learners)
    return warm_learners(benchmark, options, after_step)


def make_method(kind: type[Method], benchmark: Benchmark, learners: list[Learner], options: MethodSettings) -> Method:
    """A method with these learners on a benchmark's source."""
    return kind(benchmark.source, augment=benchmark.augment, **dict(options) | {"learners": learners})


def beginning(benchmark: Benchmark, warmup_seconds: float) -> dict[str, Any]:
    """The progress of a run that begins."""
    record = StreamRecord(ConfusionMatrix(len(benchmark.source.classes)))
    return {
        "record": record.as_data(),
        "exhibit": None,
        "warmup_seconds": warmup_seconds,
        "data": benchmark.stamp,
    }


def restore(
    method: Method, benchmark: Benchmark, tensors: dict[str, Tensor], progress: dict[str, Any]
) -> dict[str, Any]:
    """Put a method where a checkpoint was made; the progress of the run so far."""
    if progress["data"] != benchmark.stamp:
        raise BadCheckpoint(
            "the images or their labels have changed since the checkpoint was made; start over without --resume"
        )
    try:
        method.load_state(tensors)
    except (KeyError, RuntimeError) as error:
        raise BadCheckpoint("the checkpoint is of another version of crodobo; start over without --resume") from error
    return progress


def identity_of(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that decide the predictions; a run may be resumed with others for the rest."""
    options = {name: value for name, value in settings["options"].items() if name not in ("parallel", "burn")}
    return {name: value for name, value in settings.items() if name not in FREE} | {"options": options}


def finished(
    out: Path, identity: dict[str, Any], replace: str = "leave --resume out to replace it"
) -> dict[str, Any] | None:
    """The result of a run with the same settings that has ended in this folder."""
    try:
        result: dict[str, Any] = json.loads((out / "result.json").read_text())
        ended = identity_of(result["settings"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if ended != identity:
        raise BadCheckpoint(
            f"{out} holds a finished run with other settings ({differences(ended, identity)}); "
            f"choose another --out, or {replace}"
        )
    return result


def check_same_data(result: dict[str, Any], benchmark: Benchmark, out: Path) -> None:
    """Refuse to take a result for that of images which have changed since."""
    if result.get("data_stamp", "") != benchmark.stamp:
        raise BadCheckpoint(f"the images or their labels have changed since the run in {out}; choose another --out")


def _refuse_strangers(out: Path) -> None:
    """Files that would be overwritten but are not of a run are somebody else's."""
    there = [name for name in RESULT_FILES if (out / name).exists()]
    if there and not (out / "result.json").is_file() and not (out / CHECKPOINT).is_file():
        raise CrodoboError(f"{out} has a {there[0]} that is not of a run; choose another --out, or move it away")
