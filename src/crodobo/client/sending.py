"""Image files go to a service, their predictions into a file: none is lost in a crash, and none is sent for nothing.

A row is on disk before the next batch is counted, and a file that has its row is not sent again. What a crash leaves
open are the batches that were on their way: the service may have learned from them, and they are sent again.
"""

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from crodobo.client import Answer, Client
from crodobo.data.formats import SUFFIXES
from crodobo.errors import BadData, CrodoboError, Interrupted, RequestRefused, ServiceError, Unanswered
from crodobo.inbox.arrivals import UNFINISHED, Arrival
from crodobo.inbox.predictions import PredictionFile
from crodobo.session.stop import StopSignal

Ask = Callable[[Sequence[bytes]], Answer]
LOOK = 0.2  # seconds between two looks whether a signal has come


class Picture(NamedTuple):
    """A file as it was when it was read."""

    path: Path
    arrival: Arrival
    content: bytes


@dataclass
class Outcome:
    """What became of a batch: rows, files that cannot be used with the reason, and what ended it."""

    rows: list[tuple[Picture, tuple[str, ...]]] = field(default_factory=list)
    refused: list[tuple[Path, str]] = field(default_factory=list)
    error: CrodoboError | None = None


@dataclass
class Sent:
    """What has been done so far."""

    total: int
    before: int = 0  # had their rows already
    predicted: int = 0
    deleted: int = 0
    refused: list[tuple[Path, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.before + self.predicted + len(self.refused)


def find_images(places: Sequence[Path], recursive: bool = False) -> tuple[list[Path], list[Path]]:
    """The files that are named, and the images of folders in a random order: learners want queries of mixed classes.

    Then the files of folders that are left out, because they do not go by the name of an image.
    """
    found: list[Path] = []
    others: list[Path] = []
    for place in places:
        if place.is_dir():
            paths = sorted(place.rglob("*") if recursive else place.iterdir())
            inside = [path for path in paths if is_image(path, place)]
            others += [path for path in paths if path.suffix.lower() not in SUFFIXES and path.is_file()]
            if not inside:
                hint = "" if recursive else "; --recursive looks into its folders too"
                raise BadData(f"{place} holds no image ({', '.join(SUFFIXES[:3])} and the like){hint}")
            random.Random(0).shuffle(inside)
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise BadData(f"there is no file or folder {place}")
    return list(dict.fromkeys(found)), others


def is_image(path: Path, folder: Path) -> bool:
    """Whether a file goes by the name of an image; hidden ones, and those named as unfinished, do not."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and not path.name.endswith(UNFINISHED) and path.is_file()


def send(
    client: Client,
    files: Sequence[Path],
    predictions: PredictionFile,
    ask: Ask,
    *,
    batch: int = 16,
    concurrency: int = 4,
    delete: bool = False,
    watch: Callable[[Sent], None] = lambda sent: None,
) -> Sent:
    """Send the files that have no row yet, so many in a request and so many requests at a time.

    With `delete`, a file is deleted when its row is on disk, if it is still as it was sent.
    """
    sent = Sent(len(files))
    left = leave_out(files, predictions, sent, delete)
    batches = iter(lambda: list(islice(left, batch)), [])
    failure: CrodoboError | None = None
    with StopSignal() as stop, ThreadPoolExecutor(concurrency) as pool, contextlib.ExitStack() as ending:
        ending.callback(client.connection.stop)
        running: set[Future[Outcome]] = set()
        while True:
            while len(running) < concurrency and not (stop.requested or failure) and (paths := next(batches, None)):
                running.add(pool.submit(try_batch, paths, ask, delete))
            watch(sent)
            if not running:
                break
            finished, running = wait(running, LOOK, FIRST_COMPLETED)
            for outcome in (future.result() for future in finished):
                record(outcome, predictions, sent, delete)
                failure = failure or outcome.error
            if stop.requested or failure:
                client.connection.stop()
    so_far = f"{sent.before + sent.predicted} of {sent.total} images have their rows in {predictions.path}"
    if stop.requested:
        raise Interrupted(f"stopped: {so_far}; the same command goes on with the rest")
    if failure:
        rest = "sends these and the rest" if isinstance(failure, Unanswered) else "goes on with the rest"
        raise CrodoboError(f"{failure}; {so_far}, and the same command {rest}") from failure
    return sent


def leave_out(files: Sequence[Path], predictions: PredictionFile, sent: Sent, delete: bool) -> Iterator[Path]:
    """The files without a row; those that have one are deleted, where they are to be."""
    there: dict[Arrival, Path] = {}
    for path in files:
        with contextlib.suppress(OSError):  # said when it is to be read
            there[arrival_of(path, path.stat())] = path
    done = predictions.already_predicted(list(there))
    for arrival in done:
        sent.before += 1
        if delete:
            sent.deleted += delete_same(there[arrival], arrival)
    known = {there[arrival] for arrival in done}
    return iter([path for path in files if path not in known])


def try_batch(paths: Sequence[Path], ask: Ask, delete: bool) -> Outcome:
    """Have a batch predicted; an image that the service cannot use is left out, and the rest is sent again."""
    outcome = Outcome()
    parts = [list(readable(paths, delete, outcome))]
    while parts and not outcome.error:
        part = parts.pop()
        if not part:
            continue
        try:
            keep(outcome, part, ask([picture.content for picture in part]))
        except ServiceError as error:
            rest = part
            if isinstance(error.answered, Answer):
                keep(outcome, part, error.answered)
                rest = part[len(error.answered) :]
            if not isinstance(error, RequestRefused) or error.status not in (400, 413):
                outcome.error = error
            elif error.status == 400 and error.image is None and len(rest) > 1:
                parts += [rest[len(rest) // 2 :], rest[: len(rest) // 2]]
            else:
                wrong = rest[0] if error.image is None else part[error.image]
                outcome.refused.append((wrong.path, error.reason))
                parts.append([picture for picture in rest if picture is not wrong])
    return outcome


def readable(paths: Sequence[Path], delete: bool, outcome: Outcome) -> Iterator[Picture]:
    """The files that can be read; of the others it is noted why."""
    for path in paths:
        if delete and path.is_symlink():
            outcome.refused.append((path, "it is a link, and what it points to would not be deleted"))
            continue
        try:
            with path.open("rb") as file:
                status, content = os.fstat(file.fileno()), file.read()  # in this order: what is written later shows
        except OSError as error:
            outcome.refused.append((path, f"it cannot be read ({error.strerror})"))
            continue
        yield Picture(path, arrival_of(path, status), content)


def keep(outcome: Outcome, part: Sequence[Picture], answer: Answer) -> None:
    """The rows of an answer, which may be of the first pictures only."""
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    for place, (picture, label) in enumerate(zip(part, answer.labels, strict=False)):
        values: tuple[str, ...] = (label, f"{float(answer.confidence[place]):.6f}", str(answer.queries[place]), moment)
        values += (answer.receipts[place],)
        if answer.probabilities is not None:
            values += tuple(f"{value:.6f}" for value in answer.probabilities[place].tolist())
        outcome.rows.append((picture, values))


def record(outcome: Outcome, predictions: PredictionFile, sent: Sent, delete: bool) -> None:
    """Put rows on disk, then delete their files, where they are to be."""
    if outcome.rows:
        predictions.append([(picture.arrival, values) for picture, values in outcome.rows])
    sent.predicted += len(outcome.rows)
    sent.refused += outcome.refused
    if delete:
        sent.deleted += sum(delete_same(picture.path, picture.arrival) for picture, _ in outcome.rows)


def arrival_of(path: Path, status: os.stat_result) -> Arrival:
    return Arrival(status.st_mtime_ns, str(path), status.st_size)


def delete_same(path: Path, arrival: Arrival) -> bool:
    """Delete a file that has its row, unless it is another by now; whether it was deleted."""
    try:
        if path.is_symlink() or arrival_of(path, path.stat()) != arrival:
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CrodoboError(
            f"{path} has its row but cannot be deleted ({error.strerror}); put that right, then send again"
        ) from None
    return True
