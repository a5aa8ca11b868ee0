"""Send image files to a service and write the predictions to a file, surviving crashes.

A row is on disk before it counts, and a file that has a row is not sent again. After a crash, the batches that had no
answer yet are sent again, so the service may learn from them twice.
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
from crodobo.inbox.predictions import PredictionFile
from crodobo.inbox.walk import Arrival
from crodobo.session.stop import StopSignal

Ask = Callable[[Sequence[bytes]], Answer]
POLL = 0.2  # seconds between two checks for a signal


class LoadedFile(NamedTuple):
    """A file as it was when it was read."""

    path: Path
    arrival: Arrival
    content: bytes


@dataclass
class BatchResult:
    """The rows of a batch, the files that cannot be used with the reasons, and the error that ended it, if any."""

    rows: list[tuple[LoadedFile, tuple[str, ...]]] = field(default_factory=list)
    refused: list[tuple[Path, str]] = field(default_factory=list)
    error: CrodoboError | None = None


@dataclass
class Sent:
    """Counts of files."""

    total: int
    before: int = 0  # already had their rows
    predicted: int = 0
    deleted: int = 0
    refused: list[tuple[Path, str]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    @property
    def done(self) -> int:
        return self.before + self.predicted + len(self.refused)


def find_images(places: Sequence[Path], recursive: bool = False) -> tuple[list[Path], list[Path]]:
    """Find the images in files and folders. Also returns the files of folders that do not look like images.

    Images of a folder come in random order, because learners need queries of mixed classes.
    """
    found: list[Path] = []
    others: list[Path] = []
    for place in places:
        if place.is_dir():
            paths = sorted(place.rglob("*") if recursive else place.iterdir())
            inside = [path for path in paths if is_image(path, place)]
            others += [path for path in paths if path.suffix.lower() not in SUFFIXES and path.is_file()]
            if not inside:
                remedy = "Check the path." if recursive else "Check the path, or search its subfolders too."
                settings = () if recursive else ("recursive",)
                raise BadData(f"{place} contains no images ({', '.join(SUFFIXES[:3])}, …).", remedy, settings=settings)
            random.Random(0).shuffle(inside)
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise BadData(f"There is no file or folder {place}.", "Check the path.")
    return list(dict.fromkeys(found)), others


def is_image(path: Path, folder: Path) -> bool:
    """Whether a file has the name of an image and is not hidden."""
    hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
    return not hidden and path.suffix.lower() in SUFFIXES and path.is_file()


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
    """Send the files that have no row yet, with `batch` files per request and `concurrency` requests at a time.

    With `delete`, a file is deleted once its row is on disk, unless it has changed since it was sent.
    """
    sent = Sent(len(files))
    left = files_without_rows(files, predictions, sent, delete)
    batches = iter(lambda: list(islice(left, batch)), [])
    failure: CrodoboError | None = None
    with StopSignal() as stop, ThreadPoolExecutor(concurrency) as pool, contextlib.ExitStack() as ending:
        ending.callback(client.connection.stop)
        running: set[Future[BatchResult]] = set()
        while True:
            while len(running) < concurrency and not (stop.requested or failure) and (paths := next(batches, None)):
                running.add(pool.submit(send_batch, paths, ask, delete))
            watch(sent)
            if not running:
                break
            finished, running = wait(running, POLL, FIRST_COMPLETED)
            for result in (future.result() for future in finished):
                record(result, predictions, sent, delete)
                failure = failure or result.error
            if stop.requested or failure:
                client.connection.stop()
    so_far = f"{sent.before + sent.predicted} of {sent.total} images have rows in {predictions.path}."
    if stop.requested:
        raise Interrupted(f"Stopped: {so_far}", "Send again to continue with the rest.")
    if failure:
        which = "these images and the rest" if isinstance(failure, Unanswered) else "the rest"
        remedy = f"Send again to continue with {which}."
        raise CrodoboError(f"{failure} {so_far}", remedy, settings=failure.settings) from failure
    return sent


def files_without_rows(files: Sequence[Path], predictions: PredictionFile, sent: Sent, delete: bool) -> Iterator[Path]:
    """The files without a row. With `delete`, the others are deleted."""
    by_arrival: dict[Arrival, Path] = {}
    for path in files:
        with contextlib.suppress(OSError):  # reported when the file is read
            by_arrival[Arrival.of(str(path), path.stat())] = path
    done = predictions.already_predicted(list(by_arrival), exactly=delete)
    sent.before = len(done)
    if delete:
        sent.deleted = sum(delete_same(by_arrival[arrival], arrival) for arrival in done)
    known = {by_arrival[arrival] for arrival in done}
    return (path for path in files if path not in known)


def send_batch(paths: Sequence[Path], ask: Ask, delete: bool) -> BatchResult:
    """Get the predictions of a batch. Images that the service cannot use are left out, and the rest is sent again."""
    result = BatchResult()
    parts = [list(read_files(paths, delete, result))]
    while parts and not result.error:
        part = parts.pop()
        if not part:
            continue
        try:
            add_rows(result, part, ask([file.content for file in part]))
        except ServiceError as error:
            rest = part
            if isinstance(error.answered, Answer):
                add_rows(result, part, error.answered)
                rest = part[len(error.answered) :]
            if not isinstance(error, RequestRefused) or error.status not in (400, 413):
                result.error = error
            elif error.status == 400 and error.image is None and len(rest) > 1:
                parts += [rest[len(rest) // 2 :], rest[: len(rest) // 2]]
            else:
                wrong = rest[0] if error.image is None else part[error.image]
                result.refused.append((wrong.path, error.reason))
                parts.append([file for file in rest if file is not wrong])
    return result


def read_files(paths: Sequence[Path], delete: bool, result: BatchResult) -> Iterator[LoadedFile]:
    """Read the files. Those that cannot be read are noted as refused."""
    for path in paths:
        if delete and path.is_symlink():
            result.refused.append((path, "it is a link, and its target would not be deleted"))
            continue
        try:
            with path.open("rb") as file:
                status, content = os.fstat(file.fileno()), file.read()  # in this order, so later writes are noticed
        except OSError as error:
            result.refused.append((path, f"it cannot be read ({error.strerror})"))
            continue
        yield LoadedFile(path, Arrival.of(str(path), status), content)


def add_rows(result: BatchResult, files: Sequence[LoadedFile], answer: Answer) -> None:
    """Add the rows of an answer, which may cover only the first files."""
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    for index, file in enumerate(files[: len(answer)]):
        more = [] if answer.probabilities is None else answer.probabilities[index]
        confidence, *shares = (f"{share:.6f}" for share in (answer.confidence[index], *more))
        query, receipt = str(answer.queries[index]), answer.receipts[index]
        result.rows.append((file, (answer.labels[index], confidence, query, moment, receipt, *shares)))


def record(result: BatchResult, predictions: PredictionFile, sent: Sent, delete: bool) -> None:
    """Write the rows to disk. With `delete`, delete their files after that."""
    if result.rows:
        predictions.append([(file.arrival, values) for file, values in result.rows])
    sent.predicted += len(result.rows)
    sent.refused += result.refused
    if delete:
        sent.deleted += sum(delete_same(file.path, file.arrival) for file, _ in result.rows)


def delete_same(path: Path, arrival: Arrival) -> bool:
    """Delete a file that has a row, unless it has changed. Returns whether it was deleted."""
    try:
        if not arrival.is_unchanged(path.lstat()):
            return False
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        problem = f"{path} has a row but cannot be deleted ({error.strerror})."
        raise CrodoboError(problem, "Fix that, then send again.") from None
    return True
