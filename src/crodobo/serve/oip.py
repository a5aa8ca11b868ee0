"""The Open Inference Protocol: parsing an inference request, and packing its answer.

A request is JSON. With the binary tensor extension a header gives the length of the JSON, and the tensors' bytes follow
it. Errors never repeat any content of a request.
"""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crodobo.serve.errors import BadRequest

INPUT = "images"
TYPES: dict[str, torch.dtype] = {"UINT8": torch.uint8, "FP32": torch.float32, "FP64": torch.float64}
NOT_NUMBERS = "The input's `data` must be numbers that fit its datatype, in rows of equal length."
OUTPUTS = ("labels", "confidence", "probabilities")
MAX_JSON = 16 * 2**20  # bytes; JSON blocks the event loop while it is parsed, and each number becomes an object


@dataclass
class InferRequest:
    """Images, how to handle them, and in which form the client wants the answer."""

    images: Tensor
    id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = OUTPUTS
    binary: frozenset[str] = frozenset()


def parse(body: Tensor, json_length: int | None, shape: tuple[int, ...]) -> InferRequest:
    """Parse a request for a model with images of this shape. Binary images are a view of the body, not a copy.

    `json_length` is the number of bytes that are JSON. None means all.
    """
    if json_length is not None and not 0 < json_length <= len(body):
        raise BadRequest("Inference-Header-Content-Length is not within the body.")
    end = len(body) if json_length is None else json_length
    if end > MAX_JSON:
        remedy = "Send the pixels as bytes after the JSON, or send fewer images at a time."
        raise BadRequest(f"The JSON is larger than {MAX_JSON // 2**20} MB.", remedy, status=413)
    request = load_json(body[:end])
    tensor = _input(request)
    sizes = _sizes(tensor, shape)
    datatype = tensor.get("datatype")
    if not isinstance(datatype, str) or datatype not in TYPES:
        raise BadRequest(f"The input's `datatype` must be one of {', '.join(TYPES)}.")
    parameters = _object(tensor.get("parameters", {}))
    outputs, binary = _outputs(request)
    request_id = request.get("id")
    if not (request_id is None or (isinstance(request_id, str) and len(request_id) <= 128)):
        raise BadRequest("`id` must be a string of at most 128 characters.")
    if "binary_data_size" in parameters:
        images = _binary(body[end:], parameters["binary_data_size"], TYPES[datatype], sizes)
    else:
        images = _numbers(tensor.get("data"), TYPES[datatype], sizes)
    if images.dtype == torch.float64:
        images = images.float()
    return InferRequest(images, request_id, _object(request.get("parameters", {})), outputs, binary)


def load_json(content: Tensor) -> dict[str, Any]:
    """Parse a JSON object. The error does not quote any of it."""
    try:
        return _object(json.loads(content.numpy().tobytes()))
    except (ValueError, RecursionError):
        raise BadRequest("The request is not valid JSON.") from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest("The request and all `parameters` must be JSON objects.")
    return value


def _input(request: dict[str, Any]) -> dict[str, Any]:
    match request.get("inputs"):
        case [{"name": name} as tensor] if name == INPUT:
            return _object(tensor)
    raise BadRequest(f"The request must have one input, called {INPUT}.")


def _sizes(tensor: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = tensor.get("shape")
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise BadRequest("The input's `shape` must be a list of positive integers.")
    if tuple(sizes[1:]) != shape or len(sizes) != 4:
        expected = ", ".join(map(str, shape))
        raise BadRequest(f"The input's `shape` must be [samples, {expected}]: samples, channels, height, width.")
    return tuple(sizes)


def _binary(content: Tensor, size: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> Tensor:
    expected = math.prod(sizes) * dtype.itemsize
    if type(size) is not int or size != expected or size != len(content):
        raise BadRequest("`binary_data_size`, the number of bytes after the JSON and the input's `shape` do not match.")
    if content.data_ptr() % dtype.itemsize:  # the JSON may have any length, but numbers must be aligned
        content = content.clone()
    return content.view(dtype).reshape(sizes)


def _numbers(data: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> Tensor:
    """Read numbers in JSON, flat or nested.

    Types are checked before an array is made. If there is a string among the numbers, numpy would turn all of them
    into strings as long as the longest, and it caches small arrays after they are freed.
    """
    if not isinstance(data, list):
        raise BadRequest("The input has neither `data` nor `binary_data_size`.")
    values = _flatten(data)
    whole = dtype == torch.uint8
    if not set(map(type, values)) <= ({int} if whole else {int, float}):
        raise BadRequest(NOT_NUMBERS)
    if len(values) != math.prod(sizes):
        raise BadRequest("The size of the input's `data` does not match its `shape`.")
    if whole and not 0 <= min(values) <= max(values) <= 255:
        raise BadRequest(NOT_NUMBERS)
    try:
        return torch.tensor(values, dtype=torch.uint8 if whole else torch.float32).reshape(sizes)
    except (OverflowError, RuntimeError):
        raise BadRequest(NOT_NUMBERS) from None


def _flatten(data: list[Any]) -> list[Any]:
    """Flatten nested lists, which must have equal depths and lengths."""
    while data and isinstance(data[0], list):
        if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
            raise BadRequest(NOT_NUMBERS)
        data = list(itertools.chain.from_iterable(data))
    return data


def _outputs(request: dict[str, Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """The requested outputs, and which of them as bytes."""
    all_binary = _object(request.get("parameters", {})).get("binary_data_output") is True
    requested = request.get("outputs")
    if requested is None or requested == []:
        return OUTPUTS, frozenset(OUTPUTS if all_binary else ())
    if not isinstance(requested, list) or not all(isinstance(output, dict) for output in requested):
        raise BadRequest("`outputs` must be a list of objects.")
    names, binary = [], set()
    for output in requested:
        name, parameters = output.get("name"), _object(output.get("parameters", {}))
        if name not in OUTPUTS:
            raise BadRequest(f"The outputs are {', '.join(OUTPUTS)}.", "Request only these.")
        names.append(name)
        if parameters.get("binary_data", all_binary) is True:
            binary.add(name)
    return tuple(dict.fromkeys(names)), frozenset(binary)


def pack_answer(
    request: InferRequest, outputs: Mapping[str, np.ndarray | list[str]], model: str, parameters: dict[str, Any]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON if bytes follow."""
    entries, content = [], b""
    for name in request.outputs:
        values = outputs[name]
        datatype, shape = ("BYTES", [len(values)]) if isinstance(values, list) else ("FP32", list(values.shape))
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if name in request.binary:
            packed = _pack(values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            content += packed
        else:
            entry["data"] = values if isinstance(values, list) else values.astype(np.float32).reshape(-1).tolist()
        entries.append(entry)
    body = {"model_name": model, "model_version": "1", "parameters": parameters, "outputs": entries}
    if request.id is not None:
        body["id"] = request.id
    header = json.dumps(body).encode()
    return header + content, len(header) if request.binary else None


def _pack(values: np.ndarray | list[str]) -> bytes:
    """Numbers as little-endian floats, strings each after its length."""
    if isinstance(values, list):
        return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in values)
    return values.astype("<f4").tobytes()
