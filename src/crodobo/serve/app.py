"""The wires: which path leads where, who may take it, and what is said when something is wrong."""

import asyncio
import contextlib
import importlib.resources
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from crodobo import __version__
from crodobo.errors import CrodoboError, Interrupted
from crodobo.serve import openapi
from crodobo.serve.auth import Gate
from crodobo.serve.batcher import Gatherer
from crodobo.serve.errors import Refused
from crodobo.serve.keys import Keys
from crodobo.serve.metrics import Metrics
from crodobo.serve.middleware import FAILED, Around
from crodobo.serve.monitoring import Watching
from crodobo.serve.queries import Queries
from crodobo.serve.service import Service

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
        self.service, settings = service, service.settings
        self.gatherer = Gatherer(
            service,
            size=settings.query_size,
            max_wait=settings.max_wait,
            limit=settings.queue,
            deadline=settings.deadline,
            after=self.after_query,
        )
        self.gate = Gate(keys, settings.rate)
        self.metrics = Metrics(service, self.gatherer)
        self.watching = Watching(service, self.gatherer)
        self.queries = Queries(service, self.gatherer, self.metrics)
        self.loading: asyncio.Task[None] | None = None
        self.stopped: Callable[[], None] = lambda: None  # how to end the server
        self.api = FastAPI(
            title="crodobo",
            version=__version__,
            description=openapi.ABOUT,
            docs_url=None,
            redoc_url=None,
            lifespan=self.lifespan,
        )
        self.api.add_middleware(Around, counted=lambda status: self.metrics.requests.labels(str(status)).inc())
        self.api.exception_handler(Refused)(self.refuse)
        self.api.exception_handler(HTTPException)(self.refuse_http)
        self.api.exception_handler(RequestValidationError)(self.refuse_validation)
        self.api.exception_handler(CrodoboError)(self.refuse_known)
        self.routes()

    # Beginning and end

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.loading = asyncio.create_task(self.load())
        yield
        self.service.drain()
        await self.loading
        await self.gatherer.close()
        self.service.close()

    async def load(self) -> None:
        """Get the model ready while the service is alive already, and says so."""
        try:
            await self.gatherer.in_turn(self.service.load)
        except Interrupted:
            pass
        except CrodoboError as error:
            self.service.fail(error)
        except BaseException:
            self.service.fail(CrodoboError("The model could not be loaded."))
            self.after_query()
            raise
        else:
            self.gatherer.start()
        self.after_query()

    def after_query(self) -> None:
        """Show what has changed; and end, where the service can answer no more."""
        if self.service.failure:
            self.service.drain()
            self.stopped()
        self.watching.tell()

    def drain(self) -> None:
        """Accept nothing more; what was accepted is answered."""
        self.service.drain()
        self.watching.tell()

    # What is said when something is wrong

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

    async def refuse_known(self, _: Request, error: Exception) -> Response:
        """What is wrong is for the operator; where it ends the service, that says it."""
        if not self.service.failure:
            self.service.observer.note(str(error))
        return JSONResponse({"error": FAILED}, 500)

    # What is known of it

    async def server_metadata(self) -> dict[str, Any]:
        """What server this is."""
        return openapi.server(self.service.settings.name)

    async def model_metadata(self, name: str, version: str | None = None) -> dict[str, Any]:
        """What the model takes and gives."""
        self.queries.check_model(name, version)
        settings, shape = self.service.settings, self.queries.shape()
        return openapi.model(settings.name, shape, self.service.source.classes, settings.query_size, settings.max_body)

    async def model_ready(self, name: str, version: str | None = None) -> Response:
        """Whether the model answers."""
        self.queries.check_model(name, version)
        return await self.ready()

    async def live(self) -> dict[str, bool]:
        """Whether the process lives."""
        return {"live": True}

    async def ready(self) -> Response:
        """Whether the service answers queries."""
        ready = self.service.answering
        return JSONResponse({"ready": ready, "state": self.service.state}, 200 if ready else 503)

    async def read_metrics(self) -> Response:
        """For Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def act(self, action: Literal["pause", "resume", "reset", "checkpoint"]) -> dict[str, Any]:
        """Stop or go on adapting, let the learners begin anew, write the checkpoint."""
        self.queries.shape()
        service = self.service
        work: dict[str, Callable[[], None]] = {
            "pause": service.pause,
            "resume": service.resume,
            "reset": service.reset,
            "checkpoint": service.checkpoint,
        }
        try:
            await self.gatherer.in_turn(work[action])
        except CrodoboError as error:
            raise Refused(500, str(error)) from None  # an administrator may know what is wrong
        finally:
            self.after_query()
        return {"done": action, "state": self.service.state}

    # Which path leads where

    def routes(self) -> None:
        api, refused = self.api, openapi.refusals
        caller, admin = [Depends(self.gate.caller)], [Depends(self.gate.admin)]
        protocol: dict[str, Any] = {"tags": ["Open Inference Protocol"]}
        operating: dict[str, Any] = {"tags": ["Operating"]}
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            api.post(
                f"{path}/infer",
                dependencies=caller,
                openapi_extra=openapi.INFER,
                responses=openapi.INFERRED | refused(400, 401, 403, 404, 408, 411, 413, 415, 422, 429, 500, 503),
                **protocol,
            )(self.queries.infer)
            api.get(path, dependencies=caller, responses=refused(401, 403, 404, 422, 429, 503), **protocol)(
                self.model_metadata
            )
            api.get(f"{path}/ready", responses=refused(404, 422) | openapi.READY, **protocol)(self.model_ready)
        api.get("/v2", **protocol)(self.server_metadata)
        api.get("/v2/health/live", **protocol)(self.live)
        api.get("/v2/health/ready", responses=openapi.READY, **protocol)(self.ready)
        api.post(
            "/v1/predict",
            dependencies=caller,
            openapi_extra=openapi.PREDICT,
            responses=openapi.PREDICTED | refused(400, 401, 403, 408, 411, 413, 415, 422, 429, 500, 503),
            tags=["Plain"],
        )(self.queries.predict)
        watch: dict[str, Any] = {"dependencies": caller, "responses": refused(401, 403, 429, 503)} | operating
        api.get("/metrics", **watch)(self.read_metrics)
        api.get("/events", **watch)(self.watching.events)
        api.post("/admin/{action}", dependencies=admin, responses=refused(401, 403, 422, 429, 500, 503), **operating)(
            self.act
        )
        files = importlib.resources.files("crodobo.serve") / "page"
        for name, kind in PAGE.items():
            path = "/" if name == "index.html" else f"/{name.removesuffix('.html')}"
            api.get(path, include_in_schema=False)(page((files / name).read_bytes(), kind))


def page(content: bytes, kind: str) -> Callable[[], Awaitable[Response]]:
    """A file of the page."""

    async def get() -> Response:
        return Response(content, media_type=kind)

    return get
