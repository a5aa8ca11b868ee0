"""The OpenAPI document, and the metadata of the Open Inference Protocol."""

from collections.abc import Sequence
from typing import Any

from crodobo import __version__
from crodobo.serve.bodies import FORM, IMAGES, NPY, RAW
from crodobo.serve.oip import INPUT, TYPES

DESCRIPTION = (
    "A model that adapts to the images it receives, predicts them and erases them. Each answer has the id of its "
    "query's receipt."
)
ERRORS = {
    400: "The request is invalid, or an image cannot be decoded.",
    401: "The request has no valid API key.",
    403: "The key is not an administrator's, or the request was made on behalf of another site.",
    404: "There is no such model.",
    408: "The body did not arrive in time.",
    411: "The request has no Content-Length.",
    413: "The body is too large or has too many images.",
    415: "The Content-Type is not supported.",
    422: "A parameter is invalid.",
    429: "Too many requests. Retry-After says when to try again.",
    500: "The service failed. The images may have been learned.",
    503: "Loading, busy or shutting down. Nothing was learned. Retry-After says when to try again.",
}
Responses = dict[int | str, dict[str, Any]]


def _object(required: Sequence[str] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _array(items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items} | more


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


STRING, INTEGER, NUMBER, BOOLEAN = ({"type": name} for name in ("string", "integer", "number", "boolean"))
BINARY = {"schema": {"type": "string", "format": "binary"}}
ERROR = _object(["error"], error=STRING, image=INTEGER, reason=STRING)
STATE = _object(["ready", "state"], ready=BOOLEAN, state=STRING)
FACTS = {
    "receipt": {"type": "string", "description": "The id of the query's line in the ledger."},
    "query": INTEGER,
    "samples": INTEGER,
    "agreement": NUMBER,
    "kept": NUMBER,
}
ALWAYS = ("receipt", "query", "samples")


def errors(*statuses: int) -> Responses:
    """The error responses with these statuses."""
    return {status: _response(ERRORS[status], ERROR) for status in statuses}


READY: Responses = {
    200: _response("The service answers queries.", STATE),
    503: _response("The service does not answer queries, or not yet.", STATE),
}
PREDICTION = _object(
    ["label", "confidence"],
    label=STRING,
    confidence=NUMBER,
    probabilities={"type": "object", "additionalProperties": NUMBER},
)
PREDICTED: Responses = {
    200: _response(
        "A prediction for each image, and the query's receipt.",
        _object(["predictions", *ALWAYS], predictions=_array(PREDICTION), **FACTS),
    )
}
INFERRED: Responses = {
    200: _response(
        "The outputs. The query's receipt is one of the parameters.",
        _object(
            ["model_name", "model_version", "parameters", "outputs"],
            model_name=STRING,
            model_version=STRING,
            id=STRING,
            parameters=_object(ALWAYS, **FACTS),
            outputs=_array({"type": "object"}),
        ),
    )
}
INFERRED[200]["content"]["application/octet-stream"] = BINARY
PREDICT: dict[str, Any] = {
    "requestBody": {"required": True, "content": dict.fromkeys((*IMAGES, NPY, RAW, FORM), BINARY)}
}
CONTROLS = _object(
    adapt=BOOLEAN | {"default": True},
    order={"type": "string", "enum": ["adapt-then-predict", "predict-then-adapt"]},
    binary_data_output=BOOLEAN,
)
TENSOR = _object(
    ["name", "shape", "datatype"],
    name={"const": INPUT},
    shape=_array(INTEGER | {"minimum": 1}),
    datatype={"type": "string", "enum": list(TYPES)},
    data={"type": "array"},
    parameters={"type": "object"},
)
INFERENCE = _object(
    ["inputs"],
    id=STRING | {"maxLength": 128},
    parameters=CONTROLS,
    inputs=_array(TENSOR, minItems=1, maxItems=1),
    outputs=_array({"type": "object"}),
)
INFER: dict[str, Any] = {
    "parameters": [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "description": "The length of the JSON, if bytes follow it.",
            "schema": INTEGER | {"minimum": 1},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": INFERENCE}, "application/octet-stream": BINARY},
    },
}


def server_metadata(name: str) -> dict[str, Any]:
    """The metadata of the server and its one model."""
    return {"name": "crodobo", "version": __version__, "extensions": ["binary_tensor_data"], "models": [name]}


def model_metadata(
    name: str, shape: tuple[int, int, int], classes: Sequence[str], max_batch: int, max_body: int
) -> dict[str, Any]:
    """The metadata of the model. Its parameters are the classes, and the limits of one request."""
    return {
        "name": name,
        "versions": ["1"],
        "platform": "crodobo_pytorch",
        "inputs": [{"name": INPUT, "datatype": "UINT8", "shape": [-1, *shape]}],
        "outputs": [
            {"name": "labels", "datatype": "BYTES", "shape": [-1]},
            {"name": "confidence", "datatype": "FP32", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(classes)]},
        ],
        "parameters": {"max_batch": max_batch, "max_body": max_body, "classes": list(classes)},
    }
