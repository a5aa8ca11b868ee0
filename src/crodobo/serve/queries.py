"""Requests with images: from a body in the arena to the rows of its answer, and nothing left of it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal, get_args

import numpy as np
from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from torch import Tensor

from crodobo.config import Order
from crodobo.core import pixels
from crodobo.serve.batcher import Control, Gatherer, Rows
from crodobo.serve.bodies import Limits, flush_free_lists, images_of, read_body
from crodobo.serve.errors import BadRequest, Busy, Refused, room_in_memory
from crodobo.serve.metrics import Metrics
from crodobo.serve.oip import InferRequest, answer, parse
from crodobo.serve.service import Service

BODIES = 4  # of the largest size that there is room for at a time
SMALL = 2**20  # bytes; such bodies are let in beside them
DECODERS = 2  # requests whose files are decoded at a time: a small file can be a large picture


class Queries:
    """Answers requests with images.

    Parameters
    ----------
    service
        What is asked.
    gatherer
        Makes queries of requests.
    metrics
        Told how long each took.
    """

    def __init__(self, service: Service, gatherer: Gatherer, metrics: Metrics) -> None:
        self.service, self.gatherer, self.metrics = service, gatherer, metrics
        self.limits = Limits(service.settings.query_size, service.settings.max_pixels)
        self.coming = 0  # bytes of all bodies in the house
        self.decoding = asyncio.Semaphore(DECODERS)

    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width that the model takes, if it answers at all."""
        if not self.service.answering:
            raise Busy(f"the service is {self.service.state}", retry_after=5)
        channels, height, width = self.service.source.shape
        return channels, height, width

    def check_model(self, name: str, version: str | None) -> None:
        """Refuse other models than the one that there is."""
        if name != self.service.settings.name or version not in (None, "1"):
            raise Refused(404, f"there is one model here, {self.service.settings.name}, in version 1")

    # Both forms of a request

    async def infer(self, request: Request, name: str, version: str | None = None) -> Response:
        """Adapt to the images, predict them, burn them."""
        self.check_model(name, version)
        header = request.headers.get("inference-header-content-length")
        if header is not None and not (header.isascii() and header.isdigit() and len(header) < 16):
            raise BadRequest("Inference-Header-Content-Length is no number")
        began = time.monotonic()
        async with self.body(request) as body:
            asked = parse(body, None if header is None else int(header), self.service.source.shape)
            with room_in_memory():
                asked.images = self.service.memory.take(asked.images)
            try:
                rows = await self.rows(request, asked.images, control_of(asked.parameters), began)
            finally:
                self.service.memory.burn([asked.images])
        return self.reply(asked, rows)

    async def predict(
        self,
        request: Request,
        adapt: Annotated[bool, Query(description="Learn from the images, or only predict them.")] = True,
        order: Annotated[Order | None, Query(description="Which comes first.")] = None,
        probabilities: Annotated[bool, Query(description="Give the probability of every class too.")] = False,
        dtype: Annotated[Literal["uint8", "float32"], Query(description="Of a raw body.")] = "uint8",
    ) -> Response:
        """Adapt to one image or many, predict them, burn them."""
        kind = request.headers.get("content-type", "")
        data, shape, began = self.service.settings.data, self.shape(), time.monotonic()
        async with self.body(request) as body:
            async with self.turn_to_decode(began):
                with room_in_memory():
                    fit = data.fit if data else "squash"
                    images = await images_of(body, kind, shape, fit, self.service.memory, self.limits, dtype)
            try:
                rows = await self.rows(request, images, Control(adapt, order), began)
            finally:
                self.service.memory.burn([images])
        outputs = self.outputs(rows)
        predictions: list[dict[str, Any]] = [
            {"label": label, "confidence": round(float(sure), 6)}
            for label, sure in zip(outputs["labels"], outputs["confidence"], strict=True)
        ]
        if probabilities:
            for row, values in zip(predictions, rows.probabilities.tolist(), strict=True):
                row["probabilities"] = dict(zip(self.service.source.classes, values, strict=True))
        return JSONResponse({"predictions": predictions, **self.facts(rows)})

    # The way in

    @contextlib.asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[Tensor]:
        """The request's body in the arena, burned when the block ends, whatever happens inside."""
        self.shape()
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise BadRequest("a compressed body cannot be read; send it as it is", 415)
        length, settings = request.headers.get("content-length", ""), self.service.settings
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
        with self.gatherer.admitted(), self.room(size or 0):
            memory, started = self.service.memory, time.monotonic()
            try:
                async with asyncio.timeout(settings.deadline):
                    with room_in_memory():
                        body = await read_body(request.stream(), size, settings.max_body, memory)
            except TimeoutError:
                raise Refused(408, "the body did not come in time") from None
            except ClientDisconnect:
                raise Refused(499, "the client has gone away") from None
            self.metrics.latency.labels("read").observe(time.monotonic() - started)
            try:
                yield body
            finally:
                memory.burn([body])
                flush_free_lists()

    @contextlib.contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Room for a body, which is made before it comes; of large ones only for a few, however many may be inside."""
        most = self.service.settings.max_body
        if SMALL < size <= most and self.coming + size > BODIES * most:
            raise Busy("there are too many large bodies at once", retry_after=1)
        self.coming += size
        try:
            yield
        finally:
            self.coming -= size

    @contextlib.asynccontextmanager
    async def turn_to_decode(self, began: float) -> AsyncIterator[None]:
        """One of the few who may decode files at a time, if that is before the deadline."""
        try:
            async with asyncio.timeout(self.service.settings.deadline - (time.monotonic() - began)):
                await self.decoding.acquire()
        except TimeoutError:
            raise Busy("there are too many files to decode", self.gatherer.expected_wait()) from None
        try:
            yield
        finally:
            self.decoding.release()

    async def rows(self, request: Request, images: Tensor, control: Control, began: float) -> Rows:
        """Have images answered, unless the client goes away before it is their turn."""
        if wrong := pixels.misfit(images, self.service.source.shape):
            raise BadRequest(f"the batch {wrong}")
        if len(images) > (most := self.service.settings.query_size):
            raise BadRequest(f"a request has at most {most} images here; send more in several requests", 413)
        work = asyncio.ensure_future(self.gatherer.submit(images, control, began))
        gone = asyncio.ensure_future(until_gone(request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refused(499, "the client has gone away")
            rows = work.result()
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait((work,))  # out of the queue, before its images are burned
        total = time.monotonic() - began
        phases = {"wait": rows.waited, "adapt": rows.answer.seconds, "save": rows.saved, "total": total}
        for phase, seconds in phases.items():
            self.metrics.latency.labels(phase).observe(seconds)
        return rows

    # The way out

    def reply(self, asked: InferRequest, rows: Rows) -> Response:
        """The answer of the Open Inference Protocol."""
        content, length = answer(asked, self.outputs(rows), self.service.settings.name, "1", self.facts(rows))
        if length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    def outputs(self, rows: Rows) -> dict[str, np.ndarray | list[str]]:
        """Labels, confidence and probabilities of a request's rows."""
        probabilities = rows.probabilities
        confidence, numbers = probabilities.max(dim=1)
        names = self.service.source.classes
        return {
            "labels": [names[number] for number in numbers.tolist()],
            "confidence": confidence.numpy(),
            "probabilities": probabilities.numpy(),
        }

    def facts(self, rows: Rows) -> dict[str, Any]:
        """What is said of the query as a whole: its receipt, and how it was taken in."""
        prediction = rows.answer.prediction
        facts = {
            "receipt": rows.answer.receipt,
            "query": rows.answer.query,
            "samples": len(prediction.probabilities),
            "agreement": prediction.agreement,
            "kept": prediction.adaptation.kept,
        }
        return {name: value for name, value in facts.items() if value is not None}


async def until_gone(request: Request) -> None:
    """Until the client has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def control_of(parameters: dict[str, Any]) -> Control:
    """How a request wants to be met."""
    adapt, order = parameters.get("adapt", True), parameters.get("order")
    if not isinstance(adapt, bool):
        raise BadRequest("the parameter adapt must be true or false")
    if order is not None and order not in get_args(Order):
        raise BadRequest(f"the parameter order must be {' or '.join(get_args(Order))}")
    return Control(adapt, order)
