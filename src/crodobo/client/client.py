"""A client of the service: images go in, predictions and receipts come out."""

import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from crodobo.client.forms import (
    KEY,
    LENGTH,
    Answer,
    File,
    as_array,
    as_object,
    infer_answer,
    infer_request,
    join,
    plain_answer,
)
from crodobo.config import Order
from crodobo.errors import BadData, BadQuery, BadSettings, NoService, RequestRefused, ServiceError

BODY_OVERHEAD = 4096  # bytes of a body beside its images
FORM_OVERHEAD = 256  # bytes that a form adds to each file
POLL = 0.2  # seconds between two checks whether a service is ready
GETTING_READY = ("loading", "warming up", "proving")

ImageFile = File | bytes  # a path, or the content of a file
Batch = TypeVar("Batch", np.ndarray, Sequence[ImageFile])
Result = TypeVar("Result")


class Client:
    """A service that adapts to images, predicts them and erases them.

    Threads may share a client. A request is repeated if the service is busy or cannot be reached, and if its answer is
    lost: it has an idempotency key, so the service learns from it once. If the service was restarted since, it does not
    know the key, so the request is not repeated and `Unanswered` is raised.

    Parameters
    ----------
    url
        Where the service is.
    key
        An API key of the service, if it needs one.
    timeout
        Seconds to wait for an answer.
    patience
        Seconds during which a request is repeated while the service is busy or cannot be reached.
    ca
        The certificate of the authority that signed the service's certificate (PEM), if this machine does not know it.
    cert
        The files of this client's certificate and its private key, if the service requires one.

    Examples
    --------
    >>> with Client("http://127.0.0.1:9") as client:
    ...     client.ready()
    False
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: float = 60.0,
        patience: float = 60.0,
        ca: File | None = None,
        cert: tuple[File, File] | None = None,
    ) -> None:
        try:
            from crodobo.client.connection import Connection
        except ModuleNotFoundError as error:
            if error.name != "httpx2":
                raise
            remedy = 'Install it with `pip install "crodobo[client]"`.'
            raise BadSettings("The client needs the package httpx2.", remedy) from None
        self.connection = Connection(url, key, timeout=timeout, patience=patience, ca=ca, cert=cert)
        self._metadata: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()

    def ready(self) -> bool:
        """Whether the service can be reached and answers queries."""
        try:
            return self.connection.state() == "ready"
        except NoService as error:
            if error.final:
                raise
            return False

    def wait_until_ready(self, timeout: float = 60.0, loading: float = 1800.0) -> None:
        """Return when the service answers queries. Raises `NoService` if it does not in time.

        Parameters
        ----------
        timeout
            Seconds to wait for a service that cannot be reached.
        loading
            Seconds to wait for one that is starting: it may have to learn its source first.
        """
        started, noted = time.monotonic(), False
        while True:
            limit = timeout
            try:
                if (state := self.connection.state()) == "ready":
                    return
                limit = max(timeout, loading if state in GETTING_READY else 0)
                trouble = NoService(f"The service at {self.connection.url} is not ready: it is {state}.")
            except NoService as error:
                if error.final:
                    raise
                trouble = error
            if time.monotonic() + POLL > started + limit or self.connection.wait(POLL):
                raise trouble
            if not noted:
                self.connection.note(f"{trouble.problem} Waiting.")
                noted = True

    def metadata(self) -> dict[str, Any]:
        """The model's inputs and outputs. Its `parameters` hold the classes and the limits of one request."""
        name = self.connection.ask("GET", "/v2", lambda response: response.json()["models"][0])
        self._metadata = self.connection.ask("GET", f"/v2/models/{name}", as_object)
        return self._metadata

    def predict(
        self, images: Any, *, adapt: bool = True, order: Order | None = None, probabilities: bool = False
    ) -> Answer:
        """Adapt to images and predict them. Images that do not fit into one request are sent in several.

        Parameters
        ----------
        images
            A numpy array or a tensor, samples × channels × height × width, uint8 in 0..255 or floats in 0..1. The
            service receives exactly these numbers.
        adapt
            Learn from the images, or only predict them.
        order
            Which comes first. By default the service decides.
        probabilities
            Return the probability of every class too.
        """
        array = as_array(images)
        metadata = self._metadata or self.metadata()
        path, limits = f"/v2/models/{metadata['name']}/infer", metadata["parameters"]
        outputs = ["labels", "confidence", *["probabilities"] * probabilities]
        control = {"adapt": adapt} | ({"order": order} if order else {})

        def ask(part: np.ndarray) -> Answer:
            body, length = infer_request(part, outputs, control)
            headers = {LENGTH: str(length), "Content-Type": "application/octet-stream", KEY: uuid.uuid4().hex}
            sent: dict[str, Any] = {"content": body, "headers": headers, "recognised": self._recogniser(metadata)}
            return self.connection.ask("POST", path, infer_answer, repeatable=not adapt, **sent)

        return ask_in_groups(array, group_sizes([array[0].nbytes] * len(array), limits), ask)

    def predict_files(
        self, files: Sequence[ImageFile], *, adapt: bool = True, order: Order | None = None, probabilities: bool = False
    ) -> Answer:
        """Adapt to image files, or their contents, and predict them.

        They may have any size and format. The service decodes them in memory. Their names are not sent.
        """
        if not files:
            raise BadQuery("There are no files to send.")
        parameters = {"adapt": str(adapt).lower(), "probabilities": str(probabilities).lower()}
        parameters |= {"order": order} if order else {}
        metadata = self._metadata or self.metadata()
        limits = metadata["parameters"]
        parse = partial(plain_answer, classes=limits["classes"])

        def ask(part: Sequence[ImageFile]) -> Answer:
            contents = (from_file(file, Path.read_bytes, bytes) for file in part)
            form = [("image", ("image", content, "application/octet-stream")) for content in contents]
            key = uuid.uuid4().hex
            headers = {KEY: key, "Content-Type": f"multipart/form-data; boundary={key}"}  # the same when repeated
            sent: dict[str, Any] = {"params": parameters, "files": form, "headers": headers}
            sent["recognised"] = self._recogniser(metadata)
            return self.connection.ask("POST", "/v1/predict", parse, repeatable=not adapt, **sent)

        try:
            sizes = [FORM_OVERHEAD + from_file(file, lambda path: path.stat().st_size, len) for file in files]
            return ask_in_groups(files, group_sizes(sizes, limits), ask)
        except RequestRefused as error:
            if error.image is None or isinstance(file := files[error.image], bytes):
                raise
            problem = f"{os.fspath(file)} cannot be used: {error.reason}."
            named = RequestRefused(problem, status=error.status, reason=error.reason, image=error.image)
            named.answered = error.answered
            raise named from None

    def _recogniser(self, metadata: dict[str, Any]) -> Callable[[], bool] | None:
        """Says whether the service is still the process that gave this metadata, so that it knows earlier requests.

        None for a service of an earlier version, which does not know the key of a request.
        """
        instance = metadata["parameters"].get("instance")

        def is_same() -> bool:
            now = self.connection.ask_once(f"/v2/models/{metadata['name']}")
            if "parameters" in now:
                self._metadata = now
            return bool(now.get("parameters", {}).get("instance") == instance)

        return is_same if instance else None


def group_sizes(sizes: Sequence[int], limits: dict[str, Any]) -> list[int]:
    """How many images go into each request, given the bytes of each image and the limits of the service."""
    groups, used = [0], 0
    for size in sizes:
        full = groups[-1] == limits["max_batch"] or used + size > limits["max_body"] - BODY_OVERHEAD
        if groups[-1] and full:
            groups.append(0)
            used = 0
        groups[-1] += 1
        used += size
    return groups


def ask_in_groups(images: Batch, sizes: Sequence[int], ask: Callable[[Batch], Answer]) -> Answer:
    """Send images in groups of these sizes. A group that the service finds too large is halved."""
    left, done, answers = deque(sizes), 0, list[Answer]()
    while left:
        count = left.popleft()
        try:
            answers.append(ask(images[done : done + count]))
        except ServiceError as error:
            if isinstance(error, RequestRefused):
                if error.status == 413 and count > 1:
                    left.extendleft((count - count // 2, count // 2))
                    continue
                if error.image is not None:
                    error.image += done
            error.answered = join(answers) if answers else None
            raise
        done += count
    return join(answers)


def from_file(file: ImageFile, read: Callable[[Path], Result], of_bytes: Callable[[bytes], Result]) -> Result:
    """Read something from a file, or from its content."""
    try:
        return of_bytes(file) if isinstance(file, bytes) else read(Path(file))
    except OSError as error:
        raise BadData(f"{file!s} cannot be read ({error.strerror}).") from None
