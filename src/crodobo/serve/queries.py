"""Requests with images: the body goes into the arena, the rows of the answer come out, the body is burned."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Annotated, Any, Literal, get_args

import numpy as np
from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from torch import Tensor

from crodobo.config import Order
from crodobo.core import pixels
from crodobo.serve.batcher import Batcher, Control, Rows
from crodobo.serve.bodies import Wanted, decode_images, overwrite_float_cache, read_body
from crodobo.serve.decoding import Decoders
from crodobo.serve.errors import ApiError, BadRequest, Busy, TooMany, TooManyImages, busy_if_memory_is_full
from crodobo.serve.keys import Caller
from crodobo.serve.metrics import Metrics
from crodobo.serve.oip import pack_answer, parse
from crodobo.serve.openapi import FACTS
from crodobo.serve.parameters import suggest
from crodobo.serve.repeats import Repeats
from crodobo.serve.service import Service
from crodobo.serve.shares import FairShare

LARGEST_BODIES = 4  # as many bodies of the largest size have room at a time
SMALL = 2**20  # bytes; smaller bodies are always admitted
PARAMETERS = ("adapt", "order", "binary_data_output")  # of an inference request


class Queries:
    """Answers requests with images."""

    def __init__(self, service: Service, batcher: Batcher, metrics: Metrics) -> None:
        self.service, self.batcher, self.metrics = service, batcher, metrics
        self.body_bytes = FairShare(LARGEST_BODIES * service.settings.max_body)  # of all bodies in memory
        self.repeats = Repeats()
        self.decoders = Decoders(service.settings.max_pixels, batcher.expected_wait)

    def check_answering(self) -> None:
        """Refuse requests while queries are not answered."""
        if not self.service.answering:
            raise Busy(f"The service is {self.service.state}.", retry_after=5)

    def check_model(self, name: str, version: str | None) -> None:
        """Refuse the name or version of another model."""
        if name != self.service.settings.name or version not in (None, "1"):
            known = f"This service has the model {self.service.settings.name}, version 1."
            raise ApiError("There is no such model.", known, status=404)

    async def infer(self, request: Request, name: str, version: str | None = None) -> Response:
        """Adapt to the images, predict them, burn them."""
        self.check_model(name, version)
        header = request.headers.get("inference-header-content-length")
        json_length = None if header is None else parse_length(header)
        if header is not None and json_length is None:
            raise BadRequest("Inference-Header-Content-Length is not a number.")
        began = time.monotonic()
        async with self.body(request) as body:
            work = partial(self.answer_inference, request, body, json_length, began)
            return await self.repeats.answer_once(request, body, work)

    async def answer_inference(self, request: Request, body: Tensor, json_length: int | None, began: float) -> Response:
        """The answer to a body of the Open Inference Protocol."""
        inference = parse(body, json_length, self.service.source.shape)
        control = read_control(inference.parameters)
        with busy_if_memory_is_full():
            inference.images = self.service.memory.take(inference.images)
        try:
            rows = await self.rows(request, inference.images, control, began)
        finally:
            self.service.memory.burn([inference.images])
        name = self.service.settings.name
        content, json_length = pack_answer(inference, self.outputs(rows), name, self.facts(rows))
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(json_length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def predict(
        self,
        request: Request,
        adapt: Annotated[bool, Query(description="Learn from the images, or only predict them.")] = True,
        order: Annotated[Order | None, Query(description="Which comes first.")] = None,
        probabilities: Annotated[bool, Query(description="Return the probability of every class too.")] = False,
        dtype: Annotated[Literal["uint8", "float32"], Query(description="Type of the pixels in a raw body.")] = "uint8",
    ) -> Response:
        """Adapt to one or more images, predict them, burn them."""
        began = time.monotonic()
        async with self.body(request) as body:
            work = partial(self.answer_images, request, body, Control(adapt, order), dtype, probabilities, began)
            return await self.repeats.answer_once(request, body, work)

    async def answer_images(
        self, request: Request, body: Tensor, control: Control, dtype: str, probabilities: bool, began: float
    ) -> Response:
        """The answer to a body of images."""
        memory, settings = self.service.memory, self.service.settings
        content_type, fit = request.headers.get("content-type", ""), settings.data.fit if settings.data else "squash"
        channels, height, width = self.service.source.shape
        wanted = Wanted((channels, height, width), settings.query_size, fit, settings.max_pixels)
        place = partial(self.decoders.place, request.state.caller.id, until=began + settings.deadline)
        with busy_if_memory_is_full():
            images = await decode_images(body, content_type, wanted, memory, dtype, place)
        try:
            rows = await self.rows(request, images, control, began)
        finally:
            memory.burn([images])
        outputs = self.outputs(rows)
        predictions: list[dict[str, Any]] = [
            {"label": label, "confidence": round(float(confidence), 6)}
            for label, confidence in zip(outputs["labels"], outputs["confidence"], strict=True)
        ]
        if probabilities:
            for row, values in zip(predictions, rows.probabilities.tolist(), strict=True):
                row["probabilities"] = dict(zip(self.service.source.classes, values, strict=True))
        return JSONResponse({"predictions": predictions, **self.facts(rows)})

    @contextlib.asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[Tensor]:
        """The request's body in the arena. It is burned when the block ends, also after an error."""
        self.check_answering()
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise BadRequest("Compressed bodies are not supported.", "Send the body uncompressed.", status=415)
        size, settings = parse_length(request.headers.get("content-length", "")), self.service.settings
        caller: Caller = request.state.caller
        with self.batcher.admit(caller), self.reserve(size or 0, caller):
            memory, started = self.service.memory, time.monotonic()
            try:
                with busy_if_memory_is_full():
                    body = await read_body(request.receive, size, settings.max_body, memory, settings.deadline)
            except TimeoutError:
                raise ApiError("The body did not arrive in time.", status=408) from None
            except ClientDisconnect:
                raise ApiError("The client disconnected.", status=499) from None
            self.metrics.latency.labels("read").observe(time.monotonic() - started)
            try:
                yield body
            finally:
                memory.burn([body])
                overwrite_float_cache()

    @contextlib.contextmanager
    def reserve(self, size: int, caller: Caller) -> Iterator[None]:
        """Reserve memory for a body before it arrives. Only a few large bodies fit at a time."""
        if size > self.service.settings.max_body:
            yield  # it will be refused
            return
        if size > SMALL:
            if not self.body_bytes.fits(caller.id, size, fair=False):
                raise Busy("Too many large bodies at once.", retry_after=1)
            if not self.body_bytes.fits(caller.id, size, fair=caller.role == "client"):
                raise TooMany("This key has too many large bodies at once.", retry_after=1)
        with self.body_bytes.hold(caller.id, size):
            yield

    async def rows(self, request: Request, images: Tensor, control: Control, began: float) -> Rows:
        """Get the answer for images, unless the client disconnects before their turn."""
        if wrong := pixels.misfit(images, self.service.source.shape):
            raise BadRequest(f"The batch {wrong}.")
        if len(images) > (most := self.service.settings.query_size):
            raise TooManyImages(most)
        work = asyncio.ensure_future(self.batcher.submit(images, control, began, request.state.caller))
        disconnect = asyncio.ensure_future(wait_for_disconnect(request))
        try:
            await asyncio.wait((work, disconnect), return_when=asyncio.FIRST_COMPLETED)
        finally:
            disconnect.cancel()
            work.cancel()  # if its query has begun, it ends with an answer nevertheless
            await asyncio.wait((work,))  # it must leave the queue before its images are burned
        if work.cancelled():
            raise ApiError("The client disconnected.", status=499)
        rows = work.result()
        total = time.monotonic() - began
        phases = {"wait": rows.waited, "adapt": rows.answer.seconds, "save": rows.saved, "total": total}
        for phase, seconds in phases.items():
            self.metrics.latency.labels(phase).observe(seconds)
        return rows

    def outputs(self, rows: Rows) -> dict[str, np.ndarray | list[str]]:
        """Labels, confidence and probabilities of a request."""
        probabilities = rows.probabilities
        confidence, labels = probabilities.max(dim=1)
        classes = self.service.source.classes
        return {
            "labels": [classes[label] for label in labels.tolist()],
            "confidence": confidence.numpy(),
            "probabilities": probabilities.numpy(),
        }

    def facts(self, rows: Rows) -> dict[str, Any]:
        """The receipt of the query, and how many images of the request were learned.

        What is known only of the whole query is left out if other clients have images in it.
        """
        learned = rows.learned if self.service.session.method.learns else 0
        facts: dict[str, Any] = {"receipt": rows.answer.receipt, "query": rows.answer.query}
        facts |= {"samples": len(rows.probabilities), "learned": learned, "predicted_only": rows.predicted_only}
        if not rows.shared:
            numbers = rows.answer.prediction.numbers
            facts |= {"agreement": numbers["agreement"], "kept": numbers["kept"]}
        return {name: facts[name] for name in FACTS if facts.get(name) is not None}


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def parse_length(header: str) -> int | None:
    """The length that a header gives, or None if it is not a number.

    >>> parse_length("12"), parse_length("-1"), parse_length("")
    (12, None, None)
    """
    return int(header) if header.isascii() and header.isdigit() and len(header) < 16 else None


def read_control(parameters: dict[str, Any]) -> Control:
    """How a request wants its images handled. Errors repeat nothing of its body."""
    for name in parameters:
        if name not in PARAMETERS:
            raise BadRequest("The request has an unknown name in its `parameters`.", suggest(name, [*PARAMETERS]))
    adapt, order = parameters.get("adapt", True), parameters.get("order")
    if not isinstance(adapt, bool):
        raise BadRequest("`adapt` must be true or false.")
    if order is not None and order not in get_args(Order):
        raise BadRequest(f"`order` must be {' or '.join(get_args(Order))}.")
    return Control(adapt, order)
