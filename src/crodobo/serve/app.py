"""The wires: the Open Inference Protocol, plain predictions, health, metrics, events, and the page."""

import asyncio
import contextlib
import importlib.resources
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args

import numpy as np
from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from torch import Tensor

from crodobo import __version__, pixels
from crodobo.config import Order
from crodobo.errors import CrodoboError, Interrupted
from crodobo.serve import describe
from crodobo.serve.around import Around
from crodobo.serve.bodies import Limits, flush_free_lists, images_of, read_body
from crodobo.serve.errors import BadRequest, Busy, Refused
from crodobo.serve.gather import Control, Gatherer, Rows
from crodobo.serve.keys import Caller, Keys, Rate
from crodobo.serve.metrics import Metrics
from crodobo.serve.service import Service
from crodobo.serve.tensors import InferRequest, answer, parse

BODIES = 4  # of the largest size that there is room for at a time
SMALL = 2**20  # bytes; such bodies are let in beside them
BEAT = 1.0  # seconds between two events when nothing happens
PAGE = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    **dict.fromkeys(("charts.js", "docs.js", "format.js", "page.js", "stream.js"), "text/javascript"),
}


class App:
    """One service on the wires."""

    def __init__(self, service: Service, keys: Keys | None) -> None:
        self.service, self.keys = service, keys
        settings = service.settings
        self.rate = Rate(settings.rate) if settings.rate else None
        self.limits = Limits(settings.query_size, settings.max_pixels)
        self.started = time.monotonic()
        self.loading: asyncio.Task[None] | None = None
        self.stopped: Callable[[], None] = lambda: None  # how to end the server, where loading fails
        self.gatherer: Gatherer
        self.metrics: Metrics
        self.changed = asyncio.Event()
        self.coming = 0  # bytes of all bodies in the house
        self.api = FastAPI(
            title="crodobo",
            version=__version__,
            description=describe.ABOUT,
            docs_url=None,
            redoc_url=None,
            lifespan=self.lifespan,
        )
        self.api.add_middleware(Around, counted=self.count)
        self.api.exception_handler(Refused)(self.refuse)
        self.api.exception_handler(HTTPException)(self.refuse_http)
        self.api.exception_handler(RequestValidationError)(self.refuse_validation)
        self.api.exception_handler(Exception)(self.refuse_error)
        self.routes()

    # Beginning and end

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        settings = self.service.settings
        self.gatherer = Gatherer(
            self.service,
            size=settings.query_size,
            max_wait=settings.max_wait,
            limit=settings.queue,
            deadline=settings.deadline,
        )
        self.metrics = Metrics(self.service, self.gatherer)
        self.loading = asyncio.create_task(self.load())
        yield
        self.service.stopping.set()
        await self.loading
        await self.gatherer.close()
        self.service.close("failed" if self.service.state == "failed" else "stopped")

    async def load(self) -> None:
        """Get the model ready while the service is alive already, and says so."""
        try:
            await self.gatherer.in_turn(self.service.load)
        except Interrupted:
            pass
        except CrodoboError as error:
            self.service.state, self.service.failure = "failed", str(error)
            self.stopped()
        except BaseException:
            self.service.state, self.service.failure = "failed", "the model could not be loaded"
            self.stopped()
            raise
        else:
            self.gatherer.start()
        self.tell()

    def drain(self) -> None:
        """Accept nothing more; what was accepted is answered."""
        self.service.stopping.set()
        self.service.state = "draining"
        self.tell()

    def tell(self) -> None:
        """Wake whoever watches."""
        self.changed.set()
        self.changed = asyncio.Event()

    # Around every request

    def count(self, status: int) -> None:
        if hasattr(self, "metrics"):
            self.metrics.requests.labels(str(status)).inc()

    async def refuse(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": error.sentence}, error.status, headers=headers)

    async def refuse_http(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": str(error.detail)}, error.status_code, headers=error.headers)

    async def refuse_validation(self, _: Request, error: Exception) -> Response:
        """Which parameter is wrong, and never what was given for it."""
        assert isinstance(error, RequestValidationError)
        name = str(error.errors()[0]["loc"][-1])
        return JSONResponse({"error": f"the parameter {name} is not as it should be"}, 422)

    async def refuse_error(self, _: Request, error: Exception) -> Response:
        return JSONResponse({"error": "the service has failed at this request; its own log says more"}, 500)

    async def caller(self, request: Request) -> Caller:
        """Who is asking; refused without a key that is known, and where he asks too often."""
        found = Caller(request.client.host if request.client else "local", "admin")
        if self.keys:
            scheme, _, given = request.headers.get("authorization", "").partition(" ")
            key = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
            known = self.keys.find(key) if key else None
            if not known:
                raise Refused(401, "a key is needed that this service knows: Authorization: Bearer KEY")
            found = known
        if self.rate and (early := self.rate.wait(found.name)):
            raise Refused(429, "these are too many requests in a short time", early)
        return found

    async def admin(self, request: Request) -> Caller:
        """The same, for what only an administrator may."""
        found = await self.caller(request)
        if found.role != "admin":
            raise Refused(403, "this key is not an administrator's")
        if self.keys is None and request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise Refused(403, "another site may not do this")
        return found

    # Queries

    @contextlib.asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[Tensor]:
        """The request's body in the arena, burned when the block ends, whatever happens inside."""
        self.service_shape()
        if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise BadRequest("a compressed body cannot be read; send it as it is", 415)
        length, most = request.headers.get("content-length", ""), self.service.settings.max_body
        size = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else None
        with self.gatherer.admitted(), self.room(size or 0):
            memory, started = self.service.memory, time.monotonic()
            try:
                async with asyncio.timeout(self.service.settings.deadline):
                    body = await read_body(request.stream(), size, most, memory)
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

    async def rows(self, request: Request, images: Tensor, control: Control) -> Rows:
        """Have images answered, unless the client goes away before it is their turn."""
        if wrong := pixels.misfit(images, self.service.source.shape):
            raise BadRequest(f"the batch {wrong}")
        if len(images) > self.service.settings.query_size:
            most = self.service.settings.query_size
            raise BadRequest(f"a request has at most {most} images here; send more in several requests", 413)
        started = time.monotonic()
        work = asyncio.ensure_future(self.gatherer.submit(images, control))
        gone = asyncio.ensure_future(self.gone(request))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refused(499, "the client has gone away")
            rows = work.result()
        finally:
            gone.cancel()
            work.cancel()
            await asyncio.wait((work,))  # out of the queue, before its images are burned
        self.metrics.latency.labels("wait").observe(rows.waited)
        self.metrics.latency.labels("adapt").observe(rows.answer.seconds)
        self.metrics.latency.labels("total").observe(time.monotonic() - started)
        self.tell()
        return rows

    async def gone(self, request: Request) -> None:
        """Until the client has gone away."""
        while (await request.receive())["type"] != "http.disconnect":
            pass

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

    async def infer(self, request: Request, name: str, version: str | None = None) -> Response:
        """Adapt to the images, predict them, burn them."""
        self.check_model(name, version)
        header = request.headers.get("inference-header-content-length")
        if header is not None and not (header.isascii() and header.isdigit() and len(header) < 16):
            raise BadRequest("Inference-Header-Content-Length is no number")
        async with self.body(request) as body:
            asked = parse(body, None if header is None else int(header), self.service.source.shape)
            asked.images = self.service.memory.take(asked.images)
            try:
                rows = await self.rows(request, asked.images, control_of(asked.parameters))
            finally:
                self.service.memory.burn([asked.images])
        return self.reply(asked, rows)

    def reply(self, asked: InferRequest, rows: Rows) -> Response:
        content, length = answer(asked, self.outputs(rows), self.service.settings.name, "1", self.facts(rows))
        if length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

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
        settings, shape = self.service.settings, self.service_shape()
        fit = settings.data.fit if settings.data else "squash"
        async with self.body(request) as body:
            images = await images_of(body, kind, shape, fit, self.service.memory, self.limits, dtype)
            try:
                rows = await self.rows(request, images, Control(adapt, order))
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

    def service_shape(self) -> tuple[int, int, int]:
        if not self.service.answering:
            raise Busy(f"the service is {self.service.state}", retry_after=5)
        channels, height, width = self.service.source.shape
        return channels, height, width

    # What is known of it

    def check_model(self, name: str, version: str | None) -> None:
        if name != self.service.settings.name or version not in (None, "1"):
            raise Refused(404, f"there is one model here, {self.service.settings.name}, in version 1")

    async def server_metadata(self) -> dict[str, Any]:
        """What server this is."""
        return describe.server(self.service.settings.name)

    async def model_metadata(self, name: str, version: str | None = None) -> dict[str, Any]:
        """What the model takes and gives."""
        self.check_model(name, version)
        settings, shape = self.service.settings, self.service_shape()
        return describe.model(settings.name, shape, self.service.source.classes, settings.query_size, settings.max_body)

    async def model_ready(self, name: str, version: str | None = None) -> Response:
        """Whether the model answers."""
        self.check_model(name, version)
        return await self.ready()

    async def ready(self) -> Response:
        """Whether the service answers queries."""
        ready = self.service.answering
        return JSONResponse({"ready": ready, "state": self.service.state}, 200 if ready else 503)

    def snapshot(self, after: int = -1) -> dict[str, Any]:
        """All that the page shows; of queries, those after this one."""
        service = self.service
        loaded = service.state in ("ready", "paused", "draining") and hasattr(service, "source")
        return {
            "state": service.state,
            "failure": service.failure,
            "name": service.settings.name,
            "method": service.settings.method,
            "version": __version__,
            "burn": service.settings.options.burn,
            "uptime": round(time.monotonic() - self.started, 1),
            "adapting": service.adapting,
            "met": service.met,
            "totals": asdict(service.totals),
            "queue": {"requests": self.gatherer.inside, "limit": self.gatherer.limit},
            "classes": list(service.source.classes) if loaded else [],
            "points": [asdict(point) for point in list(service.points) if point.query > after],
            "receipts": list(service.receipts)[::-1],
            "proof": service.proof.as_numbers() | {"time": service.proved_at} if service.proof else None,
        }

    async def events(self, request: Request) -> Response:
        """What the page shows, as server-sent events: at once when a query is answered, else every second.

        The first event has the last queries, those that follow have what is new.
        """

        async def stream() -> AsyncIterator[str]:
            sent = -1
            while True:
                changed, now = self.changed, self.snapshot(sent)
                yield f"data: {json.dumps(now)}\n\n"
                sent = now["points"][-1]["query"] if now["points"] else sent
                if self.service.stopping.is_set():
                    return
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), BEAT)
                await asyncio.sleep(0.1)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def act(self, action: Literal["pause", "resume", "reset", "checkpoint"]) -> dict[str, Any]:
        """Stop or go on adapting, let the learners begin anew, write the checkpoint."""
        self.service_shape()
        if action in ("pause", "resume"):
            self.service.adapting = action == "resume"
            self.service.state = "ready" if self.service.adapting else "paused"
        elif action == "reset":
            await self.gatherer.in_turn(self.service.reset)
        elif failed := await self.gatherer.in_turn(self.service.checkpoint):
            raise Refused(503, f"no checkpoint could be written ({failed})", retry_after=10)
        self.tell()
        return {"done": action, "state": self.service.state}

    # All of it

    def routes(self) -> None:
        api, known, admin = self.api, [Depends(self.caller)], [Depends(self.admin)]
        posts: dict[str, Any] = {"methods": ["POST"], "dependencies": known}
        for path in ("/v2/models/{name}/infer", "/v2/models/{name}/versions/{version}/infer"):
            api.add_api_route(path, self.infer, **posts, openapi_extra=describe.INFER, tags=["Open Inference Protocol"])
        api.add_api_route("/v1/predict", self.predict, **posts, openapi_extra=describe.PREDICT, tags=["Plain"])
        gets: dict[str, Any] = {"methods": ["GET"], "tags": ["Open Inference Protocol"]}
        api.add_api_route("/v2", self.server_metadata, **gets)
        api.add_api_route("/v2/health/live", lambda: {"live": True}, **gets, summary="Whether the process lives")
        api.add_api_route("/v2/health/ready", self.ready, **gets)
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            api.add_api_route(path, self.model_metadata, **gets, dependencies=known)
            api.add_api_route(f"{path}/ready", self.model_ready, **gets)
        watch: dict[str, Any] = {"methods": ["GET"], "tags": ["Operating"], "dependencies": known}
        api.add_api_route("/metrics", self.read_metrics, **watch)
        api.add_api_route("/events", self.events, **watch)
        api.add_api_route("/admin/{action}", self.act, methods=["POST"], tags=["Operating"], dependencies=admin)
        files = importlib.resources.files("crodobo.serve") / "page"
        for name, kind in PAGE.items():
            content = (files / name).read_bytes()
            api.add_api_route(
                "/" if name == "index.html" else f"/{name.removesuffix('.html')}",
                page(content, kind),
                methods=["GET"],
                include_in_schema=False,
            )

    async def read_metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def page(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    """A file of the page."""

    async def get() -> Response:
        return Response(content, media_type=kind)

    return get


def control_of(parameters: dict[str, Any]) -> Control:
    """How a request wants to be met."""
    adapt, order = parameters.get("adapt", True), parameters.get("order")
    if not isinstance(adapt, bool):
        raise BadRequest("the parameter adapt must be true or false")
    if order is not None and order not in get_args(Order):
        raise BadRequest(f"the parameter order must be {' or '.join(get_args(Order))}")
    return Control(adapt, order)
