"""The OpenAPI document: how it describes each route, as keywords of FastAPI."""

from collections.abc import Sequence
from typing import Any, get_args

from crodobo.config import Order
from crodobo.core.prediction import Reason
from crodobo.serve.bodies import FORM, IMAGES, NPY, RAW
from crodobo.serve.oip import INPUT, TYPES

DESCRIPTION = "A model that adapts to images, predicts them and erases them. Each answer names its query's receipt."
ERRORS = {
    400: "The request is invalid, or an image cannot be decoded.",
    401: "The request has no valid API key.",
    403: "The key is not an administrator's, or the request was made on behalf of another site.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    409: "No kept state of the learners is old enough.",
    411: "The request has no Content-Length.",
    413: "The body is too large or has too many images.",
    415: "The Content-Type is not supported.",
    422: "A parameter is unknown or invalid, or another request had this Idempotency-Key.",
    429: "Too many requests. Retry-After says when to try again.",
    500: "The service failed. The images may have been learned.",
    503: "Loading, busy or shutting down. Nothing was learned. Retry-After says when to try again.",
}


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items} | more


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _route(tag: str, *statuses: int, responses: dict[int, Any] | None = None, **request: Any) -> dict[str, Any]:
    """The keywords of a route. `statuses` are those of its errors, `responses` its other responses."""
    errors = {status: _response(ERRORS[status], ERROR) for status in statuses}
    return {"tags": [tag], "responses": errors | (responses or {}), "openapi_extra": request}


STRING, INTEGER, NUMBER, BOOLEAN, OBJECT = ({"type": n} for n in ("string", "integer", "number", "boolean", "object"))
BINARY = {"schema": {"type": "string", "format": "binary"}}
ERROR = _object(["error"], error=STRING, image=INTEGER, reason=STRING)
STATE = _object(["ready", "state"], ready=BOOLEAN, state=STRING)
RECEIPT = STRING | {"description": "The id of the query's line in the ledger."}
LEARNED = INTEGER | {"description": "How many of the request's images were learned."}
UNLEARNED = STRING | {"enum": list(get_args(Reason)), "description": "Why the request's other images were not learned."}
FACTS = {
    "receipt": RECEIPT,
    "query": INTEGER,
    "samples": INTEGER,
    "agreement": NUMBER,
    "kept": NUMBER,
    "learned": LEARNED,
    "predicted_only": UNLEARNED,
}
ALWAYS = ("receipt", "query", "samples", "learned")
PROBABILITIES = OBJECT | {"additionalProperties": NUMBER}
PREDICTION = _object(["label", "confidence"], label=STRING, confidence=NUMBER, probabilities=PROBABILITIES)
PREDICTIONS = _object(["predictions", *ALWAYS], predictions=_array(PREDICTION), **FACTS)
INFERENCE = _object(
    ["model_name", "model_version", "parameters", "outputs"],
    model_name=STRING,
    model_version=STRING,
    id=STRING,
    parameters=_object(ALWAYS, **FACTS),
    outputs=_array(OBJECT),
)
INFERRED = _response("The outputs. The query's receipt is one of the parameters.", INFERENCE)
INFERRED["content"]["application/octet-stream"] = BINARY
CONTROLS = _object(
    adapt=BOOLEAN | {"default": True}, order=STRING | {"enum": list(get_args(Order))}, binary_data_output=BOOLEAN
)
TENSOR = _object(
    ["name", "shape", "datatype"],
    name={"const": INPUT},
    shape=_array(INTEGER | {"minimum": 1}),
    datatype=STRING | {"enum": list(TYPES)},
    data={"type": "array"},
    parameters=OBJECT,
)
TENSORS = _array(TENSOR, minItems=1, maxItems=1)
INFER_REQUEST = _object(
    ["inputs"], id=STRING | {"maxLength": 128}, parameters=CONTROLS, inputs=TENSORS, outputs=_array(OBJECT)
)
JSON_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "description": "The length of the JSON, if bytes follow it.",
    "schema": INTEGER | {"minimum": 1},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A new name for each request. A repeated request gets the first answer and is not learned again.",
    "schema": STRING | {"pattern": "^[!-~]{1,128}$"},
}
IS_READY = {
    200: _response("The service answers queries.", STATE),
    503: _response("The service does not answer queries, or not yet.", STATE),
}

INFER_BODY = {"application/json": {"schema": INFER_REQUEST}, "application/octet-stream": BINARY}
PREDICT_BODY = dict.fromkeys((*IMAGES, NPY, RAW, FORM), BINARY)
PROTOCOL, OPERATING = "Open Inference Protocol", "Operating"
WITH_IMAGES = (400, 401, 403, 408, 411, 413, 415, 422, 429, 500, 503)
INFER = _route(
    PROTOCOL,
    *WITH_IMAGES,
    404,
    responses={200: INFERRED},
    parameters=[JSON_LENGTH, IDEMPOTENCY_KEY],
    requestBody={"required": True, "content": INFER_BODY},
)
PREDICT = _route(
    "Plain",
    *WITH_IMAGES,
    responses={200: _response("A prediction for each image, and the query's receipt.", PREDICTIONS)},
    parameters=[IDEMPOTENCY_KEY],
    requestBody={"required": True, "content": PREDICT_BODY},
)
MODEL = _route(PROTOCOL, 401, 403, 404, 422, 429, 503)
MODEL_READY = _route(PROTOCOL, 404, 422, responses=IS_READY)
READY = _route(PROTOCOL, responses=IS_READY)
PUBLIC = _route(PROTOCOL)
WATCH = _route(OPERATING, 401, 403, 429, 503)
ROLL_BACK = _route(OPERATING, 400, 401, 403, 409, 422, 429, 500, 503)
ADMINISTER = _route(OPERATING, 401, 403, 409, 422, 429, 500, 503)
