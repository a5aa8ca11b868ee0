"""The app: its routes, who may use them, and how errors become responses."""

import asyncio
import contextlib
import importlib.resources
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from crodobo import __version__
from crodobo.errors import CrodoboError, Interrupted, NoEarlierState, TooClose
from crodobo.serve import openapi
from crodobo.serve.auth import Auth
from crodobo.serve.batcher import Batcher
from crodobo.serve.errors import ApiError, BadRequest
from crodobo.serve.keys import Keys
from crodobo.serve.metrics import Metrics
from crodobo.serve.middleware import FAILED, Middleware
from crodobo.serve.monitoring import Monitor
from crodobo.serve.oip import INPUT
from crodobo.serve.parameters import check_parameters, describe_invalid
from crodobo.serve.queries import Queries
from crodobo.serve.repeats import SECONDS
from crodobo.serve.service import Action, Service

PAGE = {
    "index.html": "text/html",
    "docs.html": "text/html",
    "icon.svg": "image/svg+xml",
    "page.css": "text/css",
    **dict.fromkeys(
        ("actions.js", "charts.js", "docs.js", "dom.js", "format.js", "page.js", "stream.js"), "text/javascript"
    ),
}
HTTP_ERRORS = {404: "There is nothing at this path.", 405: "This path does not support this method."}
Result = TypeVar("Result")


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
        self.on_ready: Callable[[], None] = lambda: None
        about: dict[str, Any] = {"title": "crodobo", "version": __version__, "description": openapi.DESCRIPTION}
        # A redirect to a path without a slash would repeat the Host header, which anybody can choose.
        self.api = FastAPI(**about, docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=self.lifespan)
        self.api.add_middleware(Middleware, count=self.metrics.count)
        for kind in (CrodoboError, HTTPException, RequestValidationError):
            self.api.add_exception_handler(kind, self.handle_error)
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
            self.batcher.start()
            self.on_ready()
        except Interrupted:
            pass
        except CrodoboError as error:
            self.service.fail(error)
        except BaseException:
            self.service.fail(CrodoboError("The model could not be loaded."))
            raise
        finally:
            self.on_change()

    def on_change(self) -> None:
        """Notify watchers, and stop the server if the service has failed."""
        if self.service.failure:
            self.service.drain()
            self.stop_server()
        self.monitor.notify()

    def reload(self) -> None:
        """Read the keys again and reopen the event log, after a log rotation for example."""
        if self.auth.keys:
            self.auth.keys.reload()
        self.service.session.log.reopen()
        self.service.session.observer.note("The keys were read again, and the event log was reopened.")

    def drain(self) -> None:
        """Admit no more requests. Those already admitted are answered."""
        self.service.drain()
        self.monitor.notify()

    async def handle_error(self, _: Request, error: Exception) -> Response:
        """Turn an error into a response."""
        if isinstance(error, ApiError):
            return JSONResponse(error.body, error.status, headers=error.headers)
        if isinstance(error, HTTPException):
            text = HTTP_ERRORS.get(error.status_code, str(error.detail))
            return JSONResponse({"error": text}, error.status_code, headers=error.headers)
        if isinstance(error, RequestValidationError):
            return JSONResponse({"error": describe_invalid(error)}, 422)
        if not self.service.failure:  # else the server stops with this error
            self.service.session.observer.note(str(error))
        return JSONResponse({"error": FAILED}, 500)  # the client need not know what is wrong

    # Metadata, health and administration

    async def server_metadata(self) -> dict[str, Any]:
        """Describe the server."""
        name = self.service.settings.name
        return {"name": "crodobo", "version": __version__, "extensions": ["binary_tensor_data"], "models": [name]}

    async def model_metadata(self, name: str, version: str | None = None) -> dict[str, Any]:
        """Describe the model's inputs and outputs. Its parameters are the classes, and the limits of one request."""
        self.queries.check_model(name, version)
        self.queries.check_answering()
        settings, source = self.service.settings, self.service.source
        limits = {"max_batch": settings.query_size, "max_body": settings.max_body}
        repeats = {"instance": self.queries.repeats.instance, "idempotency_seconds": SECONDS}
        return {
            "name": name,
            "versions": ["1"],
            "platform": "crodobo_pytorch",
            "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *source.shape]}],
            "outputs": [
                {"name": "labels", "datatype": "BYTES", "shape": [-1]},
                {"name": "confidence", "datatype": "FP32", "shape": [-1]},
                {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(source.classes)]},
            ],
            "parameters": limits | repeats | {"classes": list(source.classes)},
        }

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

    async def read_metrics(self, request: Request) -> Response:
        """Metrics for Prometheus: of the whole service for an administrator's key, else of the key's own requests."""
        content = self.metrics.text_for(request.state.caller)
        return Response(content, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def administer(self, action: Action) -> dict[str, Any]:
        """Pause or resume adaptation, reset the learners, or write a checkpoint."""
        await self.change(partial(self.service.administer, action))
        return {"done": action, "state": self.service.state}

    async def roll_back(
        self,
        queries: Annotated[int | None, Query(ge=1, description="At least this many queries back.")] = None,
        seconds: Annotated[
            float | None, Query(ge=0, allow_inf_nan=False, description="At least this many seconds back.")
        ] = None,
        to: Annotated[int | None, Query(ge=0, description="To the state after this query or an earlier one.")] = None,
    ) -> dict[str, Any]:
        """Let the learners return to the newest kept state that is old enough, by default to the last one."""
        if sum(wish is not None for wish in (queries, seconds, to)) > 1:
            raise BadRequest("`queries`, `seconds` and `to` exclude each other.", "Give one of them.")
        wanted = {"queries": queries, "seconds": seconds, "to": to}
        moment = await self.change(partial(self.service.session.roll_back, **wanted))
        return {"done": "rollback", "state": self.service.state, "to": moment.query}

    async def change(self, work: Callable[[], Result]) -> Result:
        """Do something with the learners for an administrator."""
        self.queries.check_answering()
        try:
            return await self.batcher.between_queries(work)
        except (NoEarlierState, TooClose) as error:
            raise ApiError(error.problem, error.remedy, status=409) from None
        except CrodoboError as error:  # an administrator may know what is wrong
            raise ApiError(error.problem, error.remedy, status=500) from None
        finally:
            self.on_change()

    def add_routes(self) -> None:
        get, post = self.api.get, self.api.post
        caller, known = [Depends(self.auth.caller)], Depends(check_parameters)
        sender, admin = [*caller, known], [Depends(self.auth.admin), known]
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            post(f"{path}/infer", dependencies=sender, **openapi.INFER)(self.queries.infer)
            get(path, dependencies=caller, **openapi.MODEL)(self.model_metadata)
            get(f"{path}/ready", **openapi.MODEL_READY)(self.model_ready)
        get("/v2", **openapi.PUBLIC)(self.server_metadata)
        get("/v2/health/live", **openapi.PUBLIC)(self.live)
        get("/v2/health/ready", **openapi.READY)(self.ready)
        post("/v1/predict", dependencies=sender, **openapi.PREDICT)(self.queries.predict)
        get("/metrics", dependencies=caller, **openapi.WATCH)(self.read_metrics)
        get("/events", dependencies=caller, **openapi.WATCH)(self.monitor.events)
        post("/admin/rollback", dependencies=admin, **openapi.ROLL_BACK)(self.roll_back)
        post("/admin/{action}", dependencies=admin, **openapi.ADMINISTER)(self.administer)
        folder = importlib.resources.files("crodobo.serve") / "page"
        for name, media_type in PAGE.items():
            path = "/" if name == "index.html" else f"/{name.removesuffix('.html')}"
            get(path, include_in_schema=False)(partial(page, (folder / name).read_bytes(), media_type))


async def page(content: bytes, media_type: str) -> Response:
    return Response(content, media_type=media_type)
