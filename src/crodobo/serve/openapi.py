"""What the service says of itself: to clients of the protocol, and in its OpenAPI document."""

from collections.abc import Sequence
from typing import Any

from crodobo import __version__
from crodobo.serve.bodies import FORM, IMAGES, NPY, RAW
from crodobo.serve.oip import INPUT, TYPES

ABOUT = (
    "A model that adapts to the images it is sent, predicts them and erases them. Each answer carries the id of its "
    "query's receipt."
)
BINARY = {"schema": {"type": "string", "format": "binary"}}
REFUSED = {
    400: "The request is wrong, or an image cannot be decoded.",
    401: "There is no key, or none that is known.",
    403: "The key is not an administrator's, or another site has asked.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    411: "The request does not say how long its body is.",
    413: "The body is too large, or has too many images.",
    415: "A body of this type cannot be read.",
    422: "A parameter is not as it should be.",
    429: "Too many requests in a short time; Retry-After says when to come again.",
    500: "The service has failed at this request; it may have been learned.",
    503: "Loading, too busy or shutting down; Retry-After says when to come again. Nothing was learned.",
}
ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
STATE = {
    "type": "object",
    "required": ["ready", "state"],
    "properties": {"ready": {"type": "boolean"}, "state": {"type": "string"}},
}
FACTS = {
    "receipt": {"type": "string", "description": "The id of the query's line in the ledger."},
    "query": {"type": "integer"},
    "samples": {"type": "integer"},
    "agreement": {"type": "number"},
    "kept": {"type": "number"},
}


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These ways in which a request can end without an answer, for the OpenAPI document."""
    return {status: _json(REFUSED[status], ERROR) for status in statuses}


READY: dict[int | str, dict[str, Any]] = {
    200: _json("It answers queries.", STATE),
    503: _json("It does not, or not yet.", STATE),
}
PREDICTED: dict[int | str, dict[str, Any]] = {
    200: _json(
        "A prediction for each image, and the query's receipt.",
        {
            "type": "object",
            "required": ["predictions", "receipt", "query", "samples"],
            "properties": {
                "predictions": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["label", "confidence"],
                        "properties": {
                            "label": {"type": "string"},
                            "confidence": {"type": "number"},
                            "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
                        },
                    },
                },
                **FACTS,
            },
        },
    )
}
INFERRED: dict[int | str, dict[str, Any]] = {
    200: _json(
        "The outputs, and the query's receipt among the parameters.",
        {
            "type": "object",
            "required": ["model_name", "model_version", "parameters", "outputs"],
            "properties": {
                "model_name": {"type": "string"},
                "model_version": {"type": "string"},
                "id": {"type": "string"},
                "parameters": {"type": "object", "required": ["receipt", "query", "samples"], "properties": FACTS},
                "outputs": {"type": "array", "items": {"type": "object"}},
            },
        },
    )
}
INFERRED[200]["content"]["application/octet-stream"] = BINARY
PREDICT: dict[str, Any] = {
    "requestBody": {"required": True, "content": dict.fromkeys((*IMAGES, NPY, RAW, FORM), BINARY)}
}
INFER: dict[str, Any] = {
    "parameters": [
        {
            "name": "Inference-Header-Content-Length",
            "in": "header",
            "required": False,
            "description": "How much of the body is JSON, where bytes follow.",
            "schema": {"type": "integer", "minimum": 1},
        }
    ],
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["inputs"],
                    "properties": {
                        "id": {"type": "string", "maxLength": 128},
                        "parameters": {
                            "type": "object",
                            "properties": {
                                "adapt": {"type": "boolean", "default": True},
                                "order": {"type": "string", "enum": ["adapt-then-predict", "predict-then-adapt"]},
                                "binary_data_output": {"type": "boolean"},
                            },
                        },
                        "inputs": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": 1,
                            "items": {
                                "type": "object",
                                "required": ["name", "shape", "datatype"],
                                "properties": {
                                    "name": {"const": INPUT},
                                    "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
                                    "datatype": {"type": "string", "enum": list(TYPES)},
                                    "data": {"type": "array"},
                                    "parameters": {"type": "object"},
                                },
                            },
                        },
                        "outputs": {"type": "array", "items": {"type": "object"}},
                    },
                }
            },
            "application/octet-stream": BINARY,
        },
    },
}


def server(name: str) -> dict[str, Any]:
    """What server this is, and the one model that it has."""
    return {"name": "crodobo", "version": __version__, "extensions": ["binary_tensor_data"], "models": [name]}


def model(
    name: str, shape: tuple[int, int, int], classes: Sequence[str], max_batch: int, max_body: int
) -> dict[str, Any]:
    """The model's metadata; its parameters say what one request may hold, and what the probabilities stand for."""
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
