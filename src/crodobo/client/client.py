"""A client of `crodobo serve`: images go in, predictions and receipts come out."""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import httpx2
import numpy as np

from crodobo.client.connection import Connection, File
from crodobo.client.forms import LENGTH, Answer, as_array, infer_answer, infer_request, joined, plain_answer
from crodobo.errors import BadData, BadQuery, NoService, RequestRefused, ServiceError

ROOM = 4096  # bytes of a body that are no image's
PART = 256  # bytes that a form adds to a file
POLL = 0.2  # seconds between two looks whether a service is ready
GETTING_READY = ("loading", "warming up", "proving")

Order = Literal["adapt-then-predict", "predict-then-adapt"]
Images = TypeVar("Images", np.ndarray, Sequence[File | bytes])
Result = TypeVar("Result")


class Client:
    """A service that adapts to images, predicts them and erases them.

    It may be used by several threads. A request that finds the service busy, or not there, is sent again. One that was
    sent, and whose answer was lost, is not, for the service may have learned from it: `Unanswered` says so.

    Parameters
    ----------
    url
        Where the service is.
    key
        The key that the service knows, if it asks for one.
    timeout
        Seconds to wait for an answer.
    patience
        Seconds that a request may be repeated for while the service is busy or not there.
    ca
        The certificate of the authority that the service's own is from (PEM), where the machine does not know it.
    cert
        The files of this client's own certificate and of its private key, where the service wants one.

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
        self.connection = Connection(url, key, timeout=timeout, patience=patience, ca=ca, cert=cert)
        self._metadata: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self.connection.close()

    # What is known of the service

    def ready(self) -> bool:
        """Whether the service is there and answers queries."""
        try:
            return self._state() == "ready"
        except NoService as error:
            if error.final:
                raise
            return False

    def wait_until_ready(self, timeout: float = 60.0, loading: float = 1800.0) -> None:
        """Return when the service answers queries; raises `NoService` if it does not in time.

        Parameters
        ----------
        timeout
            Seconds to wait for a service that is not there.
        loading
            Seconds to wait for one that is there and gets ready: it may have to learn its source first.
        """
        started, told = time.monotonic(), False
        while True:
            most = timeout
            try:
                state = self._state()
                if state == "ready":
                    return
                most = max(timeout, loading if state in GETTING_READY else 0)
                trouble = NoService(f"the service at {self.connection.url} is not ready yet: it is {state}")
            except NoService as error:
                if error.final:
                    raise
                trouble = error
            if time.monotonic() + POLL > started + most or self.connection.wait(POLL):
                raise trouble
            if not told:
                self.connection.note(f"waiting: {trouble}")
                told = True

    def metadata(self) -> dict[str, Any]:
        """What the model takes and gives; its `parameters` have the classes, and what one request may hold."""
        name = self._json(self.connection.ask("GET", "/v2"))["models"][0]
        self._metadata = self._json(self.connection.ask("GET", f"/v2/models/{name}"))
        return self._metadata

    def _state(self) -> str:
        response = self.connection.look("/v2/health/ready")
        found = self._json(response) if response.status_code in (200, 503) else {}
        return "ready" if found.get("ready") is True else str(found.get("state", "no service of crodobo"))

    def _known(self) -> dict[str, Any]:
        return self._metadata or self.metadata()

    # Predictions

    def predict(
        self, images: Any, *, adapt: bool = True, order: Order | None = None, probabilities: bool = False
    ) -> Answer:
        """Have images adapted to and predicted; what is too much for one request goes in several.

        Parameters
        ----------
        images
            A numpy array or a tensor, samples × channels × height × width, uint8 in 0..255 or floats in 0..1. The
            service gets these very numbers.
        adapt
            Learn from the images, or only predict them.
        order
            Which comes first; the service's own order if it is not given.
        probabilities
            Ask for the probability of every class too.
        """
        array = as_array(images)
        known = self._known()
        outputs = ["labels", "confidence", *["probabilities"] * probabilities]
        control = {"adapt": adapt} | ({"order": order} if order else {})

        def ask(part: np.ndarray) -> Answer:
            body, length = infer_request(part, outputs, control)
            response = self.connection.ask(
                "POST",
                f"/v2/models/{known['name']}/infer",
                repeatable=not adapt,
                content=body,
                headers={LENGTH: str(length), "Content-Type": "application/octet-stream"},
            )
            return self._read(infer_answer, response)

        return together(array, self._groups([array[0].nbytes] * len(array)), ask)

    def predict_files(
        self,
        files: Sequence[File | bytes],
        *,
        adapt: bool = True,
        order: Order | None = None,
        probabilities: bool = False,
    ) -> Answer:
        """The same for image files, or their contents, of any size and kind; the service decodes them in memory.

        A file's name is not sent.
        """
        if not files:
            raise BadQuery("there are no files to send")
        asked = {"adapt": str(adapt).lower(), "probabilities": str(probabilities).lower()}
        asked |= {"order": order} if order else {}
        classes = self._known()["parameters"]["classes"]

        def ask(part: Sequence[File | bytes]) -> Answer:
            forms = [("image", ("image", read(file), "application/octet-stream")) for file in part]
            response = self.connection.ask("POST", "/v1/predict", repeatable=not adapt, params=asked, files=forms)
            return self._read(lambda answer: plain_answer(answer, classes), response)

        try:
            return together(files, self._groups([size_of(file) for file in files]), ask)
        except RequestRefused as error:
            if error.image is not None and not isinstance(wrong := files[error.image], bytes):
                error.args = (f"{os.fspath(wrong)} cannot be used: {error.reason}",)
            raise

    def _groups(self, sizes: Sequence[int]) -> list[int]:
        """How many images, of so many bytes each, go into each request."""
        limits = self._known()["parameters"]
        groups, room = [0], limits["max_body"] - ROOM
        for size in sizes:
            if groups[-1] and (groups[-1] == limits["max_batch"] or size > room):
                groups.append(0)
                room = limits["max_body"] - ROOM
            groups[-1] += 1
            room -= size
        return groups

    def _json(self, response: httpx2.Response) -> dict[str, Any]:
        def load(response: httpx2.Response) -> dict[str, Any]:
            found = response.json()
            if not isinstance(found, dict):
                raise TypeError
            return found

        return self._read(load, response)

    def _read(self, how: Callable[[httpx2.Response], Result], response: httpx2.Response) -> Result:
        try:
            return how(response)
        except (ValueError, KeyError, IndexError, TypeError):
            raise ServiceError(f"what answers at {self.connection.url} is no service of crodobo") from None


def together(images: Images, groups: Sequence[int], ask: Callable[[Images], Answer]) -> Answer:
    """Ask for the images in groups, and halve one that is too much for the service after all."""
    left, done, answers = deque(groups), 0, list[Answer]()
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
            error.answered = joined(answers) if answers else None
            raise
        done += count
    return joined(answers)


def read(file: File | bytes) -> bytes:
    """A file's content."""
    try:
        return file if isinstance(file, bytes) else Path(file).read_bytes()
    except OSError as error:
        raise BadData(f"{file!s} cannot be read ({error.strerror})") from None


def size_of(file: File | bytes) -> int:
    """The bytes of a file in a form."""
    try:
        return PART + (len(file) if isinstance(file, bytes) else Path(file).stat().st_size)
    except OSError as error:
        raise BadData(f"{file!s} cannot be read ({error.strerror})") from None
