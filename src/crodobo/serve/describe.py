"""What the service says of itself: to clients of the protocol, and in its OpenAPI document."""

from collections.abc import Sequence
from typing import Any

from crodobo import __version__
from crodobo.serve.bodies import FORM, IMAGES, NPY, RAW
from crodobo.serve.tensors import INPUT, TYPES

ABOUT = (
    "A model that adapts to the images it is sent, predicts them and erases them. Each answer carries the id of its "
    "query's receipt."
)
BINARY = {"schema": {"type": "string", "format": "binary"}}
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
