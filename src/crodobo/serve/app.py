"""The app: its routes, who may use them, and how errors become responses."""

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
from crodobo.serve.auth import Auth
from crodobo.serve.batcher import Batcher
from crodobo.serve.errors import ApiError
from crodobo.serve.keys import Keys
from crodobo.serve.metrics import Metrics
from crodobo.serve.middleware import FAILED, Middleware
from crodobo.serve.monitoring import Monitor
from crodobo.serve.queries import Queries
from crodobo.serve.service import Service

PAGE = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    **dict.fromkeys(("charts.js", "docs.js", "format.js", "page.js", "stream.js"), "text/javascript"),
}
HTTP_ERRORS = {404: "There is nothing at this path.", 405: "This path does not support this method."}
SHOWN = 40  # characters of an invalid parameter that its error repeats


class App:
    """Serves a service over HTTP."""

    def __init__(self, service: Service, keys: Keys | None) -> None:
        self.service = service
        self.batcher = Batcher(service, self.on_change)
        self.auth = Auth(keys, service.settings.rate)
        self.metrics = Metrics(service, self.batcher)
        self.monitor = Monitor(service, self.batcher)
        self.queries = Queries(service, self.batcher, self.metrics)
        self.loading: asyncio.Task[None] | None = None
        self.stop_server: Callable[[], None] = lambda: None
        self.api = FastAPI(
            title="crodobo",
            version=__version__,
            description=openapi.DESCRIPTION,
            docs_url=None,
            redoc_url=None,
            lifespan=self.lifespan,
        )
        self.api.add_middleware(Middleware, count=lambda status: self.metrics.requests.labels(str(status)).inc())
        self.api.add_exception_handler(ApiError, self.handle_api_error)
        self.api.add_exception_handler(HTTPException, self.handle_http_error)
        self.api.add_exception_handler(RequestValidationError, self.handle_invalid_parameter)
        self.api.add_exception_handler(CrodoboError, self.handle_failure)
        self.add_routes()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.loading = asyncio.create_task(self.load())
        yield
        self.service.drain()
        await self.loading
        await self.batcher.close()
        self.service.close()

    async def load(self) -> None:
        """Load the model while the server already answers that it is loading."""
        try:
            await self.batcher.between_queries(self.service.load)
        except Interrupted:
            pass
        except CrodoboError as error:
            self.service.fail(error)
        except BaseException:
            self.service.fail(CrodoboError("The model could not be loaded."))
            self.on_change()
            raise
        else:
            self.batcher.start()
        self.on_change()

    def on_change(self) -> None:
        """Notify watchers, and stop the server if the service has failed."""
        if self.service.failure:
            self.service.drain()
            self.stop_server()
        self.monitor.notify()

    def drain(self) -> None:
        """Admit no more requests. Those already admitted are answered."""
        self.service.drain()
        self.monitor.notify()

    # Errors

    async def handle_api_error(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        headers = {} if error.retry_after is None else {"Retry-After": str(max(1, round(error.retry_after)))}
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(error.body, error.status, headers=headers)

    async def handle_http_error(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = HTTP_ERRORS.get(error.status_code, str(error.detail))
        return JSONResponse({"error": text}, error.status_code, headers=error.headers)

    async def handle_invalid_parameter(self, _: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        wrong = error.errors()[0]
        is_bool = wrong["type"].startswith("bool")
        expected = "true or false" if is_bool else wrong.get("ctx", {}).get("expected", "something else")
        given = str(wrong.get("input"))[:SHOWN]
        return JSONResponse({"error": f"`{wrong['loc'][-1]}` must be {expected}, not {given!r}."}, 422)

    async def handle_failure(self, _: Request, error: Exception) -> Response:
        """Tell the operator what is wrong, and the client only that something is."""
        if not self.service.failure:  # else the server stops with this error
            self.service.observer.note(str(error))
        return JSONResponse({"error": FAILED}, 500)

    # Metadata, health and administration

    async def server_metadata(self) -> dict[str, Any]:
        """Describe the server."""
        return openapi.server_metadata(self.service.settings.name)

    async def model_metadata(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Describe the model's inputs and outputs."""
        self.queries.check_model(name, version)
        settings, shape, classes = self.service.settings, self.queries.shape(), self.service.source.classes
        return openapi.model_metadata(settings.name, shape, classes, settings.query_size, settings.max_body)

    async def model_ready(self, name: str, version: str | None = None) -> Response:
        """Whether the model answers queries."""
        self.queries.check_model(name, version)
        return await self.ready()

    async def live(self) -> dict[str, bool]:
        """Whether the process is alive."""
        return {"live": True}

    async def ready(self) -> Response:
        """Whether the service answers queries."""
        ready = self.service.answering
        return JSONResponse({"ready": ready, "state": self.service.state}, 200 if ready else 503)

    async def read_metrics(self) -> Response:
        """Metrics for Prometheus."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def administer(self, action: Literal["pause", "resume", "reset", "checkpoint"]) -> dict[str, Any]:
        """Pause or resume adaptation, reset the learners, or write a checkpoint."""
        self.queries.shape()
        actions: dict[str, Callable[[], None]] = {
            "pause": self.service.pause,
            "resume": self.service.resume,
            "reset": self.service.reset,
            "checkpoint": self.service.checkpoint,
        }
        try:
            await self.batcher.between_queries(actions[action])
        except CrodoboError as error:  # an administrator may know what is wrong
            raise ApiError(error.problem, error.remedy, status=500) from None
        finally:
            self.on_change()
        return {"done": action, "state": self.service.state}

    def add_routes(self) -> None:
        api, errors = self.api, openapi.errors
        caller, admin = [Depends(self.auth.caller)], [Depends(self.auth.admin)]
        protocol: dict[str, Any] = {"tags": ["Open Inference Protocol"]}
        operating: dict[str, Any] = {"tags": ["Operating"]}
        with_images = (400, 401, 403, 408, 411, 413, 415, 422, 429, 500, 503)
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            api.post(
                f"{path}/infer",
                dependencies=caller,
                openapi_extra=openapi.INFER,
                responses=openapi.INFERRED | errors(*with_images, 404),
                **protocol,
            )(self.queries.infer)
            api.get(path, dependencies=caller, responses=errors(401, 403, 404, 422, 429, 503), **protocol)(
                self.model_metadata
            )
            api.get(f"{path}/ready", responses=errors(404, 422) | openapi.READY, **protocol)(self.model_ready)
        api.get("/v2", **protocol)(self.server_metadata)
        api.get("/v2/health/live", **protocol)(self.live)
        api.get("/v2/health/ready", responses=openapi.READY, **protocol)(self.ready)
        api.post(
            "/v1/predict",
            dependencies=caller,
            openapi_extra=openapi.PREDICT,
            responses=openapi.PREDICTED | errors(*with_images),
            tags=["Plain"],
        )(self.queries.predict)
        watch: dict[str, Any] = {"dependencies": caller, "responses": errors(401, 403, 429, 503)} | operating
        api.get("/metrics", **watch)(self.read_metrics)
        api.get("/events", **watch)(self.monitor.events)
        api.post("/admin/{action}", dependencies=admin, responses=errors(401, 403, 422, 429, 500, 503), **operating)(
            self.administer
        )
        folder = importlib.resources.files("crodobo.serve") / "page"
        for name, media_type in PAGE.items():
            path = "/" if name == "index.html" else f"/{name.removesuffix('.html')}"
            api.get(path, include_in_schema=False)(page((folder / name).read_bytes(), media_type))


def page(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    """A handler that returns a file of the page."""

    async def get() -> Response:
        return Response(content, media_type=media_type)

    return get
