"""The Open Inference Protocol's tensors: an inference request as images, an answer as outputs.

A request is JSON. With the binary tensor extension the JSON, whose length a header gives, is followed by the tensors'
bytes, which are taken as they lie there. Nothing of a request's content gets into an error's sentence.
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
NOT_NUMBERS = "the input's data must be numbers that fit its datatype, as many in every row"
OUTPUTS = ("labels", "confidence", "probabilities")
MOST_JSON = 16 * 2**20  # bytes; nothing else is done while JSON is read, and all numbers of it become objects


@dataclass
class InferRequest:
    """What a client asks: images, how they are to be met, and in what form it wants the answer."""

    images: Tensor
    id: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[str, ...] = OUTPUTS
    binary: frozenset[str] = frozenset()


def parse(body: Tensor, header_length: int | None, shape: tuple[int, ...]) -> InferRequest:
    """Read a request. `body` is its bytes; images in the binary part are a view of them, not a copy.

    Parameters
    ----------
    body
        The bytes, as a tensor of uint8.
    header_length
        How many of them are JSON; None: all.
    shape
        Channels, height and width that the model takes.
    """
    if header_length is not None and not 0 < header_length <= len(body):
        raise BadRequest("Inference-Header-Content-Length is not within the body")
    end = len(body) if header_length is None else header_length
    if end > MOST_JSON:
        most = MOST_JSON // 2**20
        raise BadRequest(f"the JSON is larger than {most} MB; send pixels as bytes after it, or fewer at a time", 413)
    request = load_json(body[:end])
    tensor = _one_input(request)
    sizes = _shape_of(tensor, shape)
    kind = tensor.get("datatype")
    if not isinstance(kind, str) or kind not in TYPES:
        raise BadRequest(f"the input's datatype must be one of {', '.join(TYPES)}")
    parameters = tensor.get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest("an input's parameters must be an object")
    outputs, binary = _outputs(request)
    named = request.get("id")
    if not (named is None or (isinstance(named, str) and len(named) <= 128)):
        raise BadRequest("id must be text of at most 128 characters")
    if "binary_data_size" in parameters:
        images = _binary(body[end:], parameters["binary_data_size"], TYPES[kind], sizes)
    else:
        images = _numbers(tensor.get("data"), TYPES[kind], sizes)
    if images.dtype == torch.float64:
        images = images.float()
    return InferRequest(images, named, _object(request.get("parameters", {})), outputs, binary)


def load_json(content: Tensor) -> dict[str, Any]:
    """A JSON object; what is wrong with it is said without a word of it."""
    text = content.numpy().tobytes()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRequest("the request is no valid JSON") from None
    return _object(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest("the request must be a JSON object, and so must its parameters")
    return value


def _one_input(request: dict[str, Any]) -> dict[str, Any]:
    inputs = request.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise BadRequest(f"the request must have one input, {INPUT}")
    if inputs[0].get("name") != INPUT:
        raise BadRequest(f"the input must be called {INPUT}")
    given: dict[str, Any] = inputs[0]
    return given


def _shape_of(tensor: dict[str, Any], shape: tuple[int, ...]) -> tuple[int, ...]:
    sizes = tensor.get("shape")
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        raise BadRequest("the input's shape must be a list of whole numbers above 0")
    if tuple(sizes[1:]) != shape or len(sizes) != 4:
        taken = ", ".join(map(str, shape))
        raise BadRequest(f"the input's shape must be [samples, {taken}]: channels, height, width")
    return tuple(sizes)


def _binary(content: Tensor, size: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> Tensor:
    wanted = math.prod(sizes) * dtype.itemsize
    if type(size) is not int or size != wanted or size != len(content):
        raise BadRequest("binary_data_size, the bytes after the JSON, and the input's shape do not agree")
    if content.data_ptr() % dtype.itemsize:  # the JSON may have any length; numbers want to lie evenly
        aligned = torch.empty(wanted, dtype=torch.uint8)
        aligned.copy_(content)
        content = aligned
    return content.view(dtype).reshape(sizes)


def _numbers(data: Any, dtype: torch.dtype, sizes: tuple[int, ...]) -> Tensor:
    """Numbers in JSON, in one list or in lists of lists.

    They are looked at before an array is made of them: numpy would make texts of all if there is a text among them,
    each as long as the longest, and what it has made of small ones it keeps.
    """
    if not isinstance(data, list):
        raise BadRequest("the input has neither data nor binary_data_size")
    values = _flat(data)
    whole = dtype == torch.uint8
    if not set(map(type, values)) <= ({int} if whole else {int, float}):
        raise BadRequest(NOT_NUMBERS)
    if len(values) != math.prod(sizes):
        raise BadRequest("the input's data has not as many numbers as its shape says")
    if whole and not 0 <= min(values) <= max(values) <= 255:
        raise BadRequest(NOT_NUMBERS)
    try:
        return torch.tensor(values, dtype=torch.uint8 if whole else torch.float32).reshape(sizes)
    except (OverflowError, RuntimeError):
        raise BadRequest(NOT_NUMBERS) from None


def _flat(data: list[Any]) -> list[Any]:
    """Lists in lists as one, if all are as deep and as long.

    >>> _flat([[[1, 2], [3, 4]]])
    [1, 2, 3, 4]
    """
    while data and isinstance(data[0], list):
        if set(map(type, data)) != {list} or len(set(map(len, data))) != 1:
            raise BadRequest(NOT_NUMBERS)
        data = list(itertools.chain.from_iterable(data))
    return data


def _outputs(request: dict[str, Any]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Which outputs are wanted, and which of them as bytes."""
    everything = _object(request.get("parameters", {})).get("binary_data_output") is True
    wanted = request.get("outputs")
    if wanted is None or wanted == []:
        return OUTPUTS, frozenset(OUTPUTS if everything else ())
    if not isinstance(wanted, list) or not all(isinstance(each, dict) for each in wanted):
        raise BadRequest("outputs must be a list of objects")
    names, binary = [], set()
    for each in wanted:
        name, parameters = each.get("name"), _object(each.get("parameters", {}))
        if name not in OUTPUTS:
            raise BadRequest(f"there are the outputs {', '.join(OUTPUTS)}, and no others")
        names.append(name)
        if parameters.get("binary_data", everything) is True:
            binary.add(name)
    return tuple(dict.fromkeys(names)), frozenset(binary)


def answer(
    request: InferRequest,
    outputs: Mapping[str, np.ndarray | list[str]],
    model: str,
    version: str,
    facts: dict[str, Any],
) -> tuple[bytes, int | None]:
    """The body of an answer, and how much of it is JSON if bytes follow."""
    described, content = [], b""
    for name in request.outputs:
        values = outputs[name]
        kind, shape = ("BYTES", [len(values)]) if isinstance(values, list) else ("FP32", list(values.shape))
        entry: dict[str, Any] = {"name": name, "datatype": kind, "shape": shape}
        if name in request.binary:
            packed = _packed(values)
            entry["parameters"] = {"binary_data_size": len(packed)}
            content += packed
        else:
            entry["data"] = values if isinstance(values, list) else values.astype(np.float32).reshape(-1).tolist()
        described.append(entry)
    body = {"model_name": model, "model_version": version, "parameters": facts, "outputs": described}
    if request.id is not None:
        body["id"] = request.id
    header = json.dumps(body).encode()
    return header + content, len(header) if request.binary else None


def _packed(values: np.ndarray | list[str]) -> bytes:
    """As bytes: numbers as they are, texts each after its length."""
    if isinstance(values, list):
        return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in values)
    return values.astype("<f4").tobytes()
